"""Gradients of depthwise convolutions by our own kernels are what float64 gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.native_support import (
    FLOATS,
    VECTORS,
    Array,
    Operand,
    channels_last,
    logical,
    needs_own_kernels,
    randn,
    run_single,
)

pytestmark = needs_own_kernels

CASES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(FLOATS),
        "kernel": st.sampled_from([3, 5]),
        "stride": st.integers(1, 2),
        "top": st.integers(0, 2),
        "left": st.integers(0, 2),
        "images": st.integers(1, 3),
        "channels": st.sampled_from([2, 16, 24, 33, 96]),
        "height": st.integers(5, 40),
        "width": st.integers(5, 40),
        "extra": st.tuples(st.integers(0, 2), st.integers(0, 2)),  # pads at the other ends
    }
)


WEIGHTS = {"implementation": "depthwise_weight_gradient"}
SOURCE = {"implementation": "depthwise_source_gradient"}


def _double(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float64)).requires_grad_()


def _made(case: dict[str, Any], kernel: int, stride: int) -> tuple[Array, Array, Array, dict[str, Any], Any]:
    """The operands of a case, its attributes, and both gradients in float64."""
    dtype, channels = case["dtype"], case["channels"]
    x = randn(case["images"], channels, case["height"], case["width"], dtype=dtype)
    w = randn(channels, 1, kernel, kernel, seed=1, dtype=dtype)
    begin, end = [case["top"], case["left"]], list(case["extra"])
    source, weights = _double(x), _double(w)
    padded = F.pad(source, (begin[1], end[1], begin[0], end[0]))
    y = F.conv2d(padded, weights, None, stride, 0, 1, channels)
    dy = randn(*y.shape, seed=2, dtype=dtype)
    y.backward(_double(dy).detach())
    attrs = {"groups": channels, "strides": [stride, stride], "pads_begin": begin, "pads_end": end}
    return x, w, dy, attrs, (source.grad, weights.grad)


@settings(max_examples=60, deadline=None)
@given(case=CASES)
def test_weights(case: dict[str, Any]) -> None:
    x, w, dy, attrs, (_, expected) = _made(case, case["kernel"], case["stride"])
    dw = np.full(w.shape, np.nan, np.float32)
    impl = run_single("conv_grad_weights", [channels_last(x), channels_last(dy)], [dw], attrs | WEIGHTS)
    assert impl == f"depthwise_weight_gradient:{VECTORS}"
    scale = np.sqrt(dy[:, 0].size) * 6 + np.abs(expected.numpy()).max()
    assert np.abs(dw - expected.numpy()).max() <= 4e-6 * scale


def test_weights_in_another_order() -> None:
    case = {"dtype": np.float32, "channels": 40, "images": 2, "height": 9, "width": 8, "top": 1, "left": 1}
    x, _, dy, attrs, (_, expected) = _made({**case, "extra": (1, 1)}, 3, 1)
    stored = np.full((3, 3, 1, 40), np.nan, np.float32)
    place = Operand(stored, (3, 2, 0, 1))
    impl = run_single("conv_grad_weights", [channels_last(x), channels_last(dy)], [place], attrs | WEIGHTS)
    assert impl == f"depthwise_weight_gradient:{VECTORS}"
    np.testing.assert_allclose(stored.transpose(3, 2, 0, 1), expected.numpy(), atol=2e-5)


@settings(max_examples=80, deadline=None)
@given(case=CASES, kernel=st.integers(3, 7), stride=st.integers(1, 3))
def test_source(case: dict[str, Any], kernel: int, stride: int) -> None:
    case = {**case, "height": case["height"] + 2, "width": case["width"] + 2}
    x, w, dy, attrs, (expected, _) = _made(case, kernel, stride)
    axes = zip(x.shape[2:], attrs["pads_begin"], attrs["pads_end"], strict=True)
    attrs["pads_end"] = [
        e - (n + b + e - kernel) % stride for n, b, e in axes
    ]  # without pixels no window sees
    dx = channels_last(np.full(x.shape, np.nan, x.dtype))
    impl = run_single("deconv", [channels_last(dy), w], [dx], attrs | SOURCE)
    assert impl == f"depthwise_source_gradient:{VECTORS}"
    error = np.abs(logical(dx).astype(np.float64) - expected.numpy())
    rounding = 0 if x.dtype == np.float32 else 2**-8 * np.abs(expected.numpy())
    assert (error <= rounding + 2e-5).all()
