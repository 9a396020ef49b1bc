"""The gradient of a convolution's weights by our own kernels, direct and Winograd, is what float64 gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.grad import conv2d_weight

from tests.native.native_support import (
    BF16,
    FLOATS,
    Array,
    Operand,
    channels_last,
    needs_bf16_vectors,
    needs_own_kernels,
    randn,
    run_single,
)

pytestmark = needs_own_kernels

LAYOUTS = {  # how weights (O, I, h, w) lie in memory, and the way back
    "HWIO": ((2, 3, 1, 0), (3, 2, 0, 1)),
    "OHWI": ((0, 2, 3, 1), (0, 3, 1, 2)),
    "OIHW": ((0, 1, 2, 3), (0, 1, 2, 3)),
}


def _expected(x: Array, dy: Array, attrs: dict[str, Any], shape: tuple[int, ...]) -> Array:
    """By PyTorch in float64, the source padded beforehand: the two ends may differ."""
    (top, left), (bottom, right) = attrs["pads_begin"], attrs["pads_end"]
    source = torch.nn.functional.pad(torch.from_numpy(x.astype(np.float64)), (left, right, top, bottom))
    gradient = torch.from_numpy(dy.astype(np.float64))
    return conv2d_weight(source, shape, gradient, attrs["strides"], 0, attrs["dilations"]).numpy()


def _gradient(
    x: Array,
    dy: Array,
    attrs: dict[str, Any],
    shape: tuple[int, ...],
    layout: str,
    implementation: str = "weight_gradient",
) -> tuple:
    there, back = LAYOUTS[layout]
    dw = np.full([shape[p] for p in there], np.nan, np.float32)
    attrs = {**attrs, "implementation": implementation}
    impl = run_single("conv_grad_weights", [channels_last(x), channels_last(dy)], [Operand(dw, back)], attrs)
    return dw.transpose(back), impl


def _check(x: Array, dy: Array, attrs: dict[str, Any], shape: tuple[int, ...], layout: str) -> str:
    dw, impl = _gradient(x, dy, attrs, shape, layout)
    expected = _expected(x, dy, attrs, shape)
    # A sum of n products errs by about sqrt(n) roundings of its terms; bfloat16 is exact until it is summed.
    scale = np.sqrt(dy[:, 0].size) * 6 + np.abs(expected).max()
    assert np.abs(dw - expected).max() <= 4e-6 * scale
    return impl


def _window(size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]) -> int:
    return (size + sum(pads) - (kernel - 1) * dilation - 1) // stride + 1


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_window(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(FLOATS))
    kernel, stride = (data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3))) for _ in range(2))
    dilation = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    pads = [data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3))) for _ in range(2)]
    size = data.draw(st.tuples(st.integers(5, 12), st.integers(5, 31)))
    images, inputs, outputs = (data.draw(st.integers(*ends)) for ends in ((1, 3), (1, 9), (1, 9)))
    space = [_window(*axis) for axis in zip(size, kernel, stride, dilation, pads, strict=True)]
    x = randn(images, inputs * 16, *size, dtype=dtype)
    dy = randn(images, outputs * 16, *space, seed=1, dtype=dtype)
    attrs = {
        "strides": list(stride),
        "dilations": list(dilation),
        "pads_begin": [p[0] for p in pads],
        "pads_end": [p[1] for p in pads],
    }
    shape = (outputs * 16, inputs * 16, *kernel)
    impl = _check(x, dy, attrs, shape, data.draw(st.sampled_from(sorted(LAYOUTS))))
    assert impl.startswith("weight_gradient")


PLAIN = {"strides": [1, 1], "dilations": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0]}


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize(
    ("images", "size", "inputs", "outputs"),
    [(4, 40, 64, 96), (1, 5, 208, 80), (1, 3, 64, 544), (1, 1, 64, 64), (2, 29, 80, 64)],
)
def test_pixels_rows_and_columns_are_shared_out(
    images: int, size: int, inputs: int, outputs: int, dtype: Any
) -> None:
    x = randn(images, inputs, size, size, dtype=dtype)
    dy = randn(images, outputs, size, size, seed=1, dtype=dtype)
    for layout in LAYOUTS:
        assert _check(x, dy, PLAIN, (outputs, inputs, 1, 1), layout).startswith("weight_gradient")


@needs_bf16_vectors
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize(("kernel", "size"), [(1, 9), (3, 9), (3, 28)])
def test_gradients_of_16_bits_are_rounded_once(layout: str, kernel: int, size: int) -> None:
    x = randn(4, 64, size, size, dtype=BF16)
    dy = randn(4, 320, size, size, seed=1, dtype=BF16)
    shape, pads = (320, 64, kernel, kernel), [kernel // 2] * 2
    attrs = PLAIN | {"pads_begin": pads, "pads_end": pads}
    name = "winograd" if (kernel, size) == (3, 28) else "weight_gradient"
    wide, _ = _gradient(x, dy, attrs, shape, layout, name)
    attrs["implementation"] = name
    there, back = LAYOUTS[layout]
    dw = np.zeros([shape[p] for p in there], BF16)
    impl = run_single("conv_grad_weights", [channels_last(x), channels_last(dy)], [Operand(dw, back)], attrs)
    assert impl.startswith(name)
    error = np.abs(dw.transpose(back).astype(np.float32) - wide)
    assert (error <= 2**-8 * np.abs(wide) + 1e-5 * np.abs(wide).max()).all()


def test_a_tap_that_sees_nothing_has_no_gradient() -> None:
    x, dy = randn(1, 64, 2, 2), randn(1, 64, 2, 2, seed=1)
    attrs = PLAIN | {"pads_begin": [4, 4], "pads_end": [4, 4], "dilations": [4, 4]}
    dw, impl = _gradient(x, dy, attrs, (64, 64, 3, 3), "HWIO")
    assert impl.startswith("weight_gradient")
    assert np.array_equal(dw[:, :, 0, 0], np.zeros((64, 64)))
    assert np.abs(dw[:, :, 1, 1]).max() > 0


@needs_bf16_vectors
def test_not_a_number_stays_where_it_is() -> None:
    x, dy = randn(1, 64, 3, 3, dtype=BF16), randn(1, 32, 3, 3, seed=1, dtype=BF16)
    x[0, 5, 1, 1] = np.nan  # the last of an odd number of pixels is paired with zeros
    dy[0, 7, 2, 2] = np.inf
    dw, impl = _gradient(x, dy, PLAIN, (32, 64, 1, 1), "HWIO")
    assert impl.startswith("weight_gradient")
    assert np.isnan(dw[:, 5]).all() and not np.isfinite(dw[7]).any()
    finite = np.delete(np.delete(dw, 5, axis=1), 7, axis=0)
    assert np.isfinite(finite).all()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_winograd_of_any_shape(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(FLOATS))
    inputs, outputs = (16 * data.draw(st.integers(1, 9)) for _ in range(2))
    space = [data.draw(st.integers(5, 30)) for _ in range(2)]
    begin, end = ([data.draw(st.integers(0, 2)) for _ in range(2)] for _ in range(2))
    size = [s + 2 - b - e for s, b, e in zip(space, begin, end, strict=True)]
    assume(min(size) > 0)
    images = data.draw(st.integers(1, 4))
    x = randn(images, inputs, *size, dtype=dtype)
    dy = randn(images, outputs, *space, seed=1, dtype=dtype)
    attrs = PLAIN | {"pads_begin": begin, "pads_end": end}
    layout = data.draw(st.sampled_from(sorted(LAYOUTS)))
    dw, impl = _gradient(x, dy, attrs, (outputs, inputs, 3, 3), layout, "winograd")
    assert impl.startswith("winograd")
    expected = _expected(x, dy, attrs, (outputs, inputs, 3, 3))
    assert np.abs(dw - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(("images", "size", "channels"), [(16, 28, 48), (40, 14, 144), (13, 7, 512)])
def test_winograd_of_many_tiles(images: int, size: int, channels: int) -> None:
    """Sums over several chunks of tiles, shared out by tiles and by panels."""
    x, dy = (randn(images, channels, size, size, seed=s) for s in range(2))
    attrs = PLAIN | {"pads_begin": [1, 1], "pads_end": [1, 1]}
    shape = (channels, channels, 3, 3)
    dw, impl = _gradient(x, dy, attrs, shape, "HWIO", "winograd")
    assert impl.startswith("winograd")
    expected = _expected(x, dy, attrs, shape)
    assert np.abs(dw - expected).max() <= 1e-5 * np.abs(expected).max()
