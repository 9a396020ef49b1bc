"""Weights in 8 bits: products are the NPU's own, and what PyTorch computes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.llm import Config, Llama, quantise
from torchair.executable import observe


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(1, 7),
    st.integers(1, 40),
    st.integers(1, 40),
)
@torch.no_grad()
def test_products_with_8_bit_weights(dtype: torch.dtype, rows: int, depth: int, columns: int) -> None:
    torch._dynamo.reset()
    x = torch.randn(rows, depth).to(dtype)
    weight = torch.randint(-128, 128, (columns, depth), dtype=torch.int8)
    scale = (torch.rand(columns) / 127).to(dtype)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int8pack_mm(x, weight, scale)

    with observe() as reports:
        found = torch.compile(function, backend="npu", dynamic=False)(x)
    expected = x.double() @ (weight.double() * scale.double()[:, None]).T
    margin = 1e-5 if dtype is torch.float32 else 2e-2
    largest = max(float((x.double().abs() @ (weight.double().abs() * scale.double()[:, None]).T).max()), 1e-6)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=margin * largest)
    assert found.dtype is dtype
    assert [r.refusals for r in reports] == [[]]


@torch.no_grad()
def test_a_decoder_with_8_bit_weights_keeps_them_so() -> None:
    torch.manual_seed(0)
    config = Config(64, 32, 64, 4, 2, 2, 16)
    model = Llama(config).eval().requires_grad_(False)
    reference = model(torch.tensor([[3]]), torch.tensor([0]))
    model.clear()
    quantise(model)
    expected = model(torch.tensor([[3]]), torch.tensor([0]))
    model.clear()
    with observe() as reports:
        found = torch.compile(model, backend="npu", fullgraph=True)(torch.tensor([[3]]), torch.tensor([0]))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert reports[0].refusals == []
    assert reports[0].operators["aten._weight_int8pack_mm.default"]
    assert (
        float((found - reference).abs().max() / reference.abs().max()) < 0.05
    )  # 8 bits are near the original
