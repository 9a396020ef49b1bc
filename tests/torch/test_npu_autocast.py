"""Autocast on the npu device: the types of operators, gradients, and the default type."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import torch_npu

assert torch_npu

KINDS = [torch.bfloat16, torch.float16]
LOW: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "linear": lambda x: functional.linear(x, x),
    "matmul": lambda x: x @ x.t(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "addmv": lambda x: torch.addmv(x[0, :3], x, x[0]),
    "conv1d": lambda x: functional.conv1d(x[None], x[None, :, :2]),
    "conv_transpose1d": lambda x: functional.conv_transpose1d(x[None], x[:, None, :2]),
    "prelu": lambda x: functional.prelu(x, x[0, :1]),
    "lstm": lambda x: nn.LSTM(4, 2).npu()(x)[0],
    "gru": lambda x: nn.GRU(4, 2).npu()(x)[0],
    "attention": lambda x: functional.scaled_dot_product_attention(*[x[None, None]] * 3),
}
WIDE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cross_entropy": lambda x: functional.cross_entropy(x, torch.zeros(3, dtype=torch.int64, device="npu")),
    "soft cross_entropy": lambda x: functional.cross_entropy(x, x),
    "nll_loss": lambda x: functional.nll_loss(x, torch.zeros(3, dtype=torch.int64, device="npu")),
    "mse_loss": lambda x: functional.mse_loss(x, x),
    "with_logits": lambda x: functional.binary_cross_entropy_with_logits(x, x),
    "layer_norm": lambda x: functional.layer_norm(x, (4,)),
    "group_norm": lambda x: functional.group_norm(x, 2),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: functional.log_softmax(x, -1),
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(1),
    "exp": lambda x: x.exp(),
    "pow": lambda x: x**2,
    "norm": lambda x: x.norm(),
    "norm of rows": lambda x: torch.norm(x, dim=1),
    "cumsum": lambda x: x.cumsum(0),
    "cat": lambda x: torch.cat([x, x.float()]),
    "addcmul": lambda x: torch.addcmul(x, x, x.float()),
}


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", LOW)
def test_products_run_in_the_lower_type(name: str, dtype: torch.dtype) -> None:
    with torch.autocast("npu", dtype=dtype):
        assert LOW[name](torch.ones(3, 4, device="npu")).dtype is dtype
    wide = torch.ones(3, 4, dtype=torch.float64, device="npu")
    if name not in ("lstm", "gru"):
        with torch.autocast("npu", dtype=dtype):
            assert LOW[name](wide).dtype is torch.float64


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", WIDE)
def test_losses_and_sums_run_in_float32(name: str, dtype: torch.dtype) -> None:
    with torch.autocast("npu", dtype=dtype):
        assert WIDE[name](torch.ones(3, 4, dtype=dtype, device="npu")).dtype is torch.float32
    with torch.autocast("npu", dtype=dtype, enabled=False):
        assert torch.ones(3, 4, dtype=dtype, device="npu").sum().dtype is dtype


def test_an_asked_type_and_a_lower_type_stay() -> None:
    x = torch.ones(3, 4, dtype=torch.bfloat16, device="npu")
    with torch.autocast("npu"):
        assert x.sum(dtype=torch.bfloat16).dtype is x.softmax(1, dtype=torch.bfloat16).dtype is torch.bfloat16
        assert torch.cat([x, x]).dtype is (x + x).dtype is x.relu().dtype is torch.bfloat16
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            functional.binary_cross_entropy(x.float(), x.float())


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("layer", [nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4), nn.RMSNorm(4)])
def test_normalisations_of_low_precision_inputs_train(
    layer: nn.Module, enabled: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    plain = torch.randn(3, 4, dtype=dtype)
    found = []
    for device in ("cpu", "npu"):
        x = plain.clone().to(device).detach().requires_grad_()
        module = layer.to(device)
        module.zero_grad()
        with torch.autocast(device, dtype=dtype, enabled=enabled):
            result = module(x)
        result.float().square().sum().backward()
        found.append([x.grad.cpu(), *(p.grad.cpu() for p in module.parameters())])  # type: ignore[union-attr]
    assert [f.dtype for f in found[1]] == [f.dtype for f in found[0]]
    torch.testing.assert_close(found[1], found[0], rtol=5e-2, atol=5e-2)


def test_the_default_type_is_the_same_everywhere() -> None:
    found: list[torch.dtype] = []

    def look() -> None:
        x = torch.ones(2, 2, device="npu")
        for context in (torch.autocast("npu"), torch.npu.amp.autocast(), torch.amp.autocast("npu")):
            with context:
                found.append((x @ x).dtype)

    look()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [torch.bfloat16] * 6


def test_scaled_steps_are_left_out_where_gradients_overflow() -> None:
    weight = nn.Parameter(torch.ones(2, device="npu"))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.5), torch.amp.GradScaler("npu", init_scale=8.0)
    for factor, expected in ((1.0, [0.5, 0.5]), (float("inf"), [0.5, 0.5])):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.tolist() == expected
    assert scaler.get_scale() == 4.0


def _product_and_cast(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, object]:
    """A product, and the node of the backward graph that casts the weight."""
    product = x @ weight
    assert product.grad_fn is not None
    return product, product.grad_fn.next_functions[1][0]


def test_a_weight_is_cast_once_in_a_region() -> None:
    weight, x = torch.ones(4, 4, device="npu", requires_grad=True), torch.ones(2, 4, device="npu")
    with torch.autocast("npu"):
        with torch.no_grad():
            assert (x @ weight).dtype is torch.bfloat16  # a cast without a gradient is not used again
        (first, one), (second, two) = _product_and_cast(x, weight), _product_and_cast(x, weight)
        assert one is two
        with torch.no_grad():
            weight += 1
        changed, _ = _product_and_cast(x, weight)
        assert changed.tolist() == [[8.0] * 4] * 2
    (first + second + changed).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [[6.0] * 4] * 4
    with torch.autocast("npu"):
        assert _product_and_cast(x, weight)[1] is not one
    with torch.autocast("npu", cache_enabled=False):
        assert _product_and_cast(x, weight)[1] is not _product_and_cast(x, weight)[1]
