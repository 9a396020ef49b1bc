"""Maximum pooling: NaN, and gradients equal to eager mode's, for which no positions are kept."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchair
from torchair.executable import observe

WINDOWS = [(3, 2, 1, False), (2, 2, 0, False), (3, 1, 1, False), (3, 2, 0, True)]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", WINDOWS)
def test_the_first_of_equal_maxima_gets_the_gradient(
    window: tuple[int, int, int, bool], dtype: torch.dtype
) -> None:
    kernel, stride, padding, ceil = window
    pool = nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil)
    x = torch.randint(0, 3, (2, 16, 17, 18)).to(dtype).requires_grad_()
    twin = x.detach().double().requires_grad_()
    factors = torch.randn(pool(x).shape).to(dtype)
    with observe() as reports:
        (torch.compile(lambda v: pool(v * 2), backend="npu", fullgraph=True)(x) * factors).sum().backward()
    (pool(twin * 2) * factors.double()).sum().backward()
    assert [r.failure or r.refusals for r in reports if r.failure or r.refusals] == []
    assert "torchair.max_pool2d_backward.default" in reports[-1].operators
    assert x.grad is not None and twin.grad is not None
    tolerance = 1e-6 if dtype is torch.float32 else 2**-7
    torch.testing.assert_close(x.grad.double(), twin.grad, rtol=tolerance, atol=tolerance)


def test_networks_with_statistics_keep_no_positions() -> None:
    """Graphs that write running statistics are cut by another way."""
    network = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    twin, x = copy.deepcopy(network), torch.randn(2, 3, 17, 18)
    with observe() as reports:
        torch.compile(network, backend="npu", fullgraph=True)(x).square().sum().backward()
    twin(x).square().sum().backward()
    assert "torchair.max_pool2d_backward.default" in reports[-1].operators
    for (name, found), expected in zip(network.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=1e-4, atol=1e-3, msg=name)


def test_an_argument_that_is_pooled_keeps_its_positions() -> None:
    x = torch.randn(2, 16, 9, 9, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    with observe() as reports:
        torch.compile(nn.MaxPool2d(2), backend="npu")(x).square().sum().backward()
    nn.MaxPool2d(2)(twin).square().sum().backward()
    assert "aten.max_pool2d_with_indices_backward.default" in reports[-1].operators
    torch.testing.assert_close(x.grad, twin.grad)


POOLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "squares": lambda x: F.max_pool2d(x, 2),
    "dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
    "with positions": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "1d": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "3d": lambda x: F.max_pool3d(x[:, None].expand(-1, 2, -1, -1, -1), (1, 2, 2)),
    "whole": lambda x: F.adaptive_max_pool2d(x, 1),
    "before relu": lambda x: F.relu(F.max_pool2d(x, 3, 2, 1)),
    "after a convolution": lambda x: F.max_pool2d(
        F.conv2d(x, torch.ones(8, x.shape[1], 1, 1, dtype=x.dtype)), 2
    ),
    "of rows apart": lambda x: F.max_pool2d(x[:, :, ::2], 2),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("channels", [1, 3, 16, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_maxima_of_windows_with_nan_are_nan(name: str, channels: int, dtype: torch.dtype) -> None:
    """oneDNN's maxima pass over NaN, PyTorch's do not."""
    x = torch.randn(2, channels, 9, 9, generator=torch.Generator().manual_seed(channels)).to(dtype)
    x[0, 0, 4, 4] = x[1, -1, 0, 8] = torch.nan
    x[0, -1, 2, 2], x[1, 0, 7, 7] = torch.inf, -torch.inf
    torch._dynamo.reset()
    compiled = torch.compile(POOLS[name], backend=torchair.get_npu_backend())
    for values in (x, x.nan_to_num(), x):
        torch.testing.assert_close(compiled(values), POOLS[name](values), equal_nan=True)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_maximum_of_nothing_but_minus_infinity_is_minus_infinity(
    name: str, channels: int, dtype: torch.dtype
) -> None:
    """oneDNN's maxima begin with the lowest number."""
    x = torch.full((2, channels, 9, 9), -torch.inf, dtype=dtype)
    x[0, 0, 4, 4], x[0, 0, 6, 6], x[1, -1, 8, 0] = 1, torch.nan, torch.finfo(dtype).min
    torch._dynamo.reset()
    compiled = torch.compile(POOLS[name], backend=torchair.get_npu_backend())
    torch.testing.assert_close(compiled(x), POOLS[name](x), equal_nan=True)


@pytest.mark.parametrize("window", [(3, 2, 1, 1), (2, 1, 1, 2), (2, 2, 0, 1)])
def test_positions_of_minus_infinity_are_inside_of_the_image(window: tuple[int, int, int, int]) -> None:
    def pooled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.max_pool2d(x, *window, return_indices=True)

    x = torch.full((1, 2, 7, 8), -torch.inf)
    x[0, 0, 3, 3] = 1
    found, expected = torch.compile(pooled, backend="npu")(x), pooled(x)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


@pytest.mark.parametrize("sizes", [(5, 3), (4, 7), (20, 15), (2, 10)])
def test_means_of_windows_keep_nan_and_infinity_inside(sizes: tuple[int, int]) -> None:
    def pooled(x: torch.Tensor) -> torch.Tensor:
        return F.adaptive_avg_pool2d(x, sizes)

    x = torch.randn(2, 3, 9, 10, requires_grad=True)
    twin, special = x.detach().clone().requires_grad_(), x.detach().clone()
    special[0, 0, 0, 2], special[1, 1, 8, 9], special[0, 2] = torch.nan, torch.inf, -torch.inf
    compiled = torch.compile(pooled, backend="npu")
    torch.testing.assert_close(compiled(special), pooled(special), equal_nan=True)
    compiled(x).square().sum().backward()
    pooled(twin).square().sum().backward()
    torch.testing.assert_close(x.grad, twin.grad)


class _Block(nn.Module):
    """The head of a residual network: maxima of windows, added to a convolution of themselves and bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.conv = nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.pool(x)
        return torch.relu(self.conv(y) + y)


@pytest.mark.parametrize("special", [None, torch.nan, torch.inf, -torch.inf])
def test_maxima_are_added_to_a_convolution_before_a_bound(special: float | None) -> None:
    block, x = _Block().eval(), torch.randn(2, 8, 16, 16)
    if special is not None:
        x[0, :, 4:8, 4:8] = special
    with observe() as reports, torch.no_grad():
        found, wanted = torch.compile(block, backend="npu", fullgraph=True)(x), block(x)
    assert [r.failure or r.refusals for r in reports if r.failure or r.refusals] == []
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
