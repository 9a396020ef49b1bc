"""NaN and infinities in compiled functions are what PyTorch makes of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import torchair  # noqa: F401  (registers the backend)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_floor_division_keeps_the_sign_of_zero(dtype: torch.dtype) -> None:
    numbers = torch.tensor([0.0, -0.0, 0.5, -0.5, 3.0, -3.0, math.inf, -math.inf, math.nan], dtype=dtype)
    a, b = (t.flatten() for t in torch.meshgrid(numbers, numbers, indexing="ij"))
    torch._dynamo.reset()
    found, expected = torch.compile(torch.floor_divide, backend="npu")(a, b), torch.floor_divide(a, b)
    torch.testing.assert_close(found, expected, equal_nan=True)
    settled = ~expected.isnan()
    assert torch.equal(found.signbit()[settled], expected.signbit()[settled])


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
def test_rows_added_to_an_empty_tensor_are_not_looked_at(shape: tuple[int, int]) -> None:
    def added(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, places, torch.ones(2, x.shape[1]))

    torch._dynamo.reset()
    given = torch.zeros(shape), torch.tensor([0, 9])
    assert torch.compile(added, backend="npu")(*given).shape == added(*given).shape == shape


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("shape", [(), (1,), (2, 1)])
def test_softmax_of_one_element(name: str, shape: tuple[int, ...]) -> None:
    def shares(x: torch.Tensor) -> torch.Tensor:
        return getattr(torch, name)(x, -1)

    torch._dynamo.reset()
    function = torch.compile(shares, backend="npu")
    for number in (math.nan, math.inf, -math.inf, 2.0):
        found, expected = (f(torch.full(shape, number, requires_grad=True)) for f in (function, shares))
        torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_products_after_a_zero_are_zero(dtype: torch.dtype, axis: int) -> None:
    large = torch.full((3, 40), torch.finfo(dtype).max, dtype=dtype)
    large[:, 0] = large[0] = 0
    torch._dynamo.reset()
    found = torch.compile(lambda x: x.cumprod(axis), backend="npu")(large)
    torch.testing.assert_close(found, large.cumprod(axis), equal_nan=True)


def test_running_totals_of_many_numbers_are_as_exact_as_in_eager_mode() -> None:
    numbers = torch.rand(50000, generator=torch.Generator().manual_seed(0))
    growing = torch.cat([torch.full((600,), 0.5), torch.full((600,), 2.0)])
    torch._dynamo.reset()
    total, product = torch.compile(lambda x, y: (x.cumsum(0), y.cumprod(0)), backend="npu")(numbers, growing)
    torch.testing.assert_close(total, numbers.cumsum(0), rtol=2**-23, atol=0)
    torch.testing.assert_close(product, growing.cumprod(0), rtol=2**-23, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [4, 1])
def test_samples_at_points_that_are_nowhere_or_far_away(
    dtype: torch.dtype, mode: str, align: bool, size: int
) -> None:
    numbers = torch.tensor([math.nan, math.inf, -math.inf, 1e20, -1e20, 1e6, 5.0, 0.3], dtype=dtype)
    grid = torch.cartesian_prod(numbers, numbers).reshape(1, 8, 8, 2)
    image = torch.arange(float(size * size), dtype=dtype).reshape(1, 1, size, size)

    def samples(image: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        return [F.grid_sample(image, grid, mode, p, align) for p in ("zeros", "border", "reflection")]

    torch._dynamo.reset()
    found = torch.compile(samples, backend="npu")(image, grid)
    torch.testing.assert_close(found, samples(image, grid), equal_nan=True, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("count", [0, 3, 90])
@pytest.mark.parametrize("invert", [False, True])
def test_membership_among_elements_with_nan(dtype: torch.dtype, count: int, invert: bool) -> None:
    numbers = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 2.5, -7.0, 8.0]
    source = torch.tensor([n for n in numbers if dtype.is_floating_point or math.isfinite(n)]).to(dtype)
    draw = torch.Generator().manual_seed(count)
    elements = source[torch.randint(len(source), (4, 5), generator=draw)]
    torch._dynamo.reset()
    function = torch.compile(lambda x, y: torch.isin(x, y, invert=invert), backend="npu")
    for known in (source, source[1:], source[:1]):
        tests = known[torch.randint(len(known), (count,), generator=draw)]
        assert torch.equal(function(elements, tests), torch.isin(elements, tests, invert=invert))


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (2, 1), (2, 3), (1, 1, 1), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
def test_affine_grids_one_pixel_wide(size: tuple[int, ...], align_corners: bool) -> None:
    def grid(theta: torch.Tensor) -> torch.Tensor:
        return F.affine_grid(theta, [2, 1, *size], align_corners)

    torch._dynamo.reset()
    theta = torch.randn(2, len(size), len(size) + 1, requires_grad=1 not in size)
    expected, found = grid(theta), torch.compile(grid, backend="npu")(theta)
    torch.testing.assert_close(found, expected)
    if theta.requires_grad:  # else PyTorch cannot trace the gradient
        slopes = [torch.autograd.grad(y.square().sum(), theta)[0] for y in (found, expected)]
        torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("other", [torch.tensor([True, False]), True])
def test_bools_are_not_subtracted(other: torch.Tensor | bool) -> None:
    for subtract in (torch.sub, torch.rsub, lambda x, y: x - y):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match="bool"):
            torch.compile(subtract, backend="npu")(torch.ones(2), other)
