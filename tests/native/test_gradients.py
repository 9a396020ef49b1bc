"""Gradients of convolutions and pooling against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import npu_runtime as rt
from tests.native.native_support import (
    BF16,
    Array,
    Operand,
    channels_last,
    close,
    logical,
    needs_own_kernels,
    randn,
    run_single,
)


def _leaf(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float64)).requires_grad_()


@pytest.mark.parametrize(("stride", "pad", "groups"), [(1, 1, 1), (2, 0, 1), (1, 1, 4)])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_gradient_of_weights_and_bias(stride: int, pad: int, groups: int, last: bool, dtype: Any) -> None:
    x = randn(2, 8, 9, 9).astype(dtype)
    w, b = _leaf(randn(16, 8 // groups, 3, 3, seed=1)), _leaf(randn(16, seed=2))
    y = F.conv2d(torch.from_numpy(x.astype(np.float64)), w, b, stride, pad, 1, groups)
    dy = randn(*y.shape, seed=3).astype(dtype)
    y.backward(torch.from_numpy(dy.astype(np.float64)))
    dw, db = np.zeros(w.shape, np.float32), np.zeros(16, np.float32)
    place = channels_last if last else Operand
    attrs = {"strides": [stride] * 2, "pads_begin": [pad] * 2, "pads_end": [pad] * 2, "groups": groups}
    impl = run_single("conv_grad_weights", [place(x), place(dy)], [dw, db], attrs)
    assert w.grad is not None and b.grad is not None
    close(dw, w.grad.numpy(), 1e-5 if dtype == np.float32 else 1e-2)
    close(db, b.grad.numpy(), 1e-5 if dtype == np.float32 else 1e-2)
    assert impl


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("images", [1, 2, 5, 7])
@pytest.mark.parametrize(("dtype", "made"), [(np.float32, np.float32), (BF16, np.float32), (BF16, BF16)])
def test_threads_share_the_images_of_a_gradient(threads: int, images: int, dtype: Any, made: Any) -> None:
    x = randn(images, 3, 40, 40).astype(dtype)
    w, b = _leaf(randn(24, 3, 3, 3, seed=1)), _leaf(randn(24, seed=2))
    y = F.conv2d(torch.from_numpy(x.astype(np.float64)), w, b)
    dy = randn(*y.shape, seed=3).astype(dtype)
    y.backward(torch.from_numpy(dy.astype(np.float64)))
    dw, db = np.zeros(w.shape, made), np.zeros(24, made)
    before = rt.num_threads()
    rt.set_num_threads(threads)
    try:
        attrs = {"implementation": "onednn_shares"}
        run_single("conv_grad_weights", [channels_last(x), channels_last(dy)], [dw, db], attrs)
    finally:
        rt.set_num_threads(before)
    assert w.grad is not None and b.grad is not None
    close(dw, w.grad.numpy(), 1e-5 if made == dtype == np.float32 else 1e-2)
    close(db, b.grad.numpy(), 1e-5 if made == dtype == np.float32 else 1e-2)


def test_gradient_of_weights_in_another_axis_order() -> None:
    x, w = randn(1, 4, 6, 6), _leaf(randn(8, 4, 3, 3, seed=1))
    y = F.conv2d(torch.from_numpy(x.astype(np.float64)), w)
    dy = randn(*y.shape, seed=2)
    y.backward(torch.from_numpy(dy.astype(np.float64)))
    stored = np.zeros((3, 3, 4, 8), np.float32)
    run_single("conv_grad_weights", [channels_last(x), channels_last(dy)], [Operand(stored, (3, 2, 0, 1))])
    assert w.grad is not None
    close(stored.transpose(3, 2, 0, 1), w.grad.numpy(), 1e-5)


def test_gradient_of_a_convolutions_source_is_a_deconvolution() -> None:
    x, w = _leaf(randn(1, 4, 9, 9)), randn(8, 4, 3, 3, seed=1)
    y = F.conv2d(x, torch.from_numpy(w.astype(np.float64)), None, 2, 1)
    dy = randn(*y.shape, seed=2)
    y.backward(torch.from_numpy(dy.astype(np.float64)))
    dx = channels_last(np.zeros(x.shape, np.float32))
    attrs = {"strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1]}
    run_single("deconv", [channels_last(dy), w], [dx], attrs)
    assert x.grad is not None
    close(logical(dx), x.grad.numpy(), 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize(("size", "strides"), [((9, 8), (2, 2)), ((8, 7), (3, 1)), ((5, 11), (1, 3))])
@needs_own_kernels
def test_source_of_a_strided_1x1_convolution(
    size: tuple[int, int], strides: tuple[int, int], added: bool, dtype: Any
) -> None:
    x, w = _leaf(randn(3, 40, *size)), randn(24, 40, 1, 1, seed=1).astype(dtype)
    y = F.conv2d(x, torch.from_numpy(w.astype(np.float64)), None, strides)
    dy = randn(*y.shape, seed=2).astype(dtype)
    y.backward(torch.from_numpy(dy.astype(np.float64)))
    before = randn(3, 40, *size, seed=3).astype(dtype)
    dx = channels_last(before)
    attrs = {"strides": list(strides), "post_ops": ["sum"] if added else [], "implementation": "spread"}
    assert run_single("deconv", [channels_last(dy), w], [dx], attrs)
    assert x.grad is not None
    expected = x.grad.numpy() + (before.astype(np.float64) if added else 0)
    error = np.abs(logical(dx).astype(np.float64) - expected)
    rounding = 0 if dtype == np.float32 else 2**-8 * np.abs(expected)  # once, after the sum
    assert (error <= rounding + 1e-5).all()


@pytest.mark.parametrize("kind", ["max", "avg_include", "avg_exclude"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gradient_of_pooling(kind: str, last: bool, dtype: Any) -> None:
    data = randn(2, 16, 8, 8).astype(dtype)
    x = _leaf(data)
    if kind == "max":
        y = F.max_pool2d(x, 3, 2, 1)
    else:
        y = F.avg_pool2d(x, 3, 2, 1, count_include_pad=kind == "avg_include")
    dy = randn(*y.shape, seed=1).astype(dtype)
    y.backward(torch.from_numpy(dy.astype(np.float64)))
    place = channels_last if last else Operand
    dx = place(np.zeros(x.shape, dtype))
    attrs = {"kind": kind, "kernel": [3, 3], "strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1]}
    run_single("pool_grad", [place(dy), place(data)], [dx], attrs)
    assert x.grad is not None
    close(logical(dx), x.grad.numpy(), 1e-5 if dtype == np.float32 else 2e-3)
