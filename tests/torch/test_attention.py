"""Attention through torch.compile: values and gradients are those of eager mode, whichever way it runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ge.ir.builder import GraphBuilder
from tests.support.small_graphs import compiled, kinds
from torchair.executable import observe

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float64: 1e-10}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.5},
    "few queries": {"queries": 3},
    "hidden keys": {"attn_mask": torch.rand(40, 40).add(torch.eye(40)) > 0.4},
    "added mask": {"attn_mask": torch.randn(2, 1, 1, 40)},
    "double": {"dtype": torch.float64},
    "narrow": {"dtype": torch.bfloat16},
    "narrow causal": {"dtype": torch.bfloat16, "is_causal": True},
    "odd depth": {"dtype": torch.bfloat16, "depth": 15},
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    """The heads of a token lie side by side, as linear layers leave them."""
    options = dict(CASES[name])
    dtype, depth = options.pop("dtype", torch.float32), options.pop("depth", 16)
    torch.manual_seed(0)
    queries = options.pop("queries", 40)
    leaves = [torch.randn(2, n, 3 * depth, dtype=dtype, requires_grad=True) for n in (queries, 40, 40)]
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options["attn_mask"] = mask.to(dtype)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads = [t.unflatten(-1, (3, depth)).transpose(1, 2) for t in (q, k, v)]
        return F.scaled_dot_product_attention(*heads, **options).transpose(1, 2).flatten(2)

    expected = attend(*leaves)
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, weights)
    with observe() as reports:
        found = torch.compile(attend, backend="npu", dynamic=False)(*leaves)
        gradients = torch.autograd.grad(found, leaves, weights)
    assert [r.failure or r.refusals for r in reports] == [[]] * len(reports)
    for ours, theirs in zip((found, *gradients), (expected, *wanted), strict=True):
        ours, theirs = ours.detach().double(), theirs.detach().double()
        error = (ours - theirs).abs().max() / theirs.abs().max()
        assert float(error) <= TOLERANCE[dtype]


@pytest.mark.parametrize("hides", [False, True], ids=["added", "boolean"])
def test_masks_of_grouped_heads_on_the_device(hides: bool) -> None:
    import torch_npu  # noqa: F401

    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    mask = torch.rand(5, 7) > 0.5 if hides else torch.randn(5, 7)
    wanted = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    found = F.scaled_dot_product_attention(q.npu(), k.npu(), v.npu(), mask.npu(), enable_gqa=True)
    torch.testing.assert_close(found.cpu(), wanted)


def test_attention_is_one_task() -> None:
    """Also between products, whose results it reads and writes as they lie."""

    def build(b: GraphBuilder) -> Any:
        heads = [
            b.op("Transpose", b.op("Reshape", b.input(n, (2, 32, 64), "float32"), shape=[2, 32, 4, 16]),
                 perm=[0, 2, 1, 3])
            for n in "qkv"
        ]  # fmt: skip
        y, _ = b.op("Attention", *heads, scale=0.25)
        return b.op("Transpose", y, perm=[0, 2, 1, 3])

    assert kinds(compiled(build)) == ["attention"]


@pytest.mark.parametrize("precision", ["default", "allow_mix_precision_bf16"])
def test_layers_in_training(precision: str) -> None:
    """A layer with attention in float32, also where the NPU lowers its products."""
    import torchair

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    x = torch.randn(2, 24, 32)
    layer(x).square().mean().backward()
    wanted = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    config = torchair.CompilerConfig()
    if precision != "default":
        config.ge_config.precision_mode = precision
    torch.compile(layer, backend=torchair.get_npu_backend(compiler_config=config))(
        x
    ).square().mean().backward()
    found = [p.grad for p in layer.parameters() if p.grad is not None]
    tolerance = 1e-5 if precision == "default" else 3e-2
    assert len(found) == len(wanted) > 0
    for ours, theirs in zip(found, wanted, strict=True):
        assert float((ours - theirs).abs().max()) <= tolerance * max(1.0, float(theirs.abs().max()))
