"""Convolutions that run as Winograd give what a direct convolution gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import npu_runtime as rt


def _view(buffer: int, array: np.ndarray, perm: tuple[int, ...] | None = None) -> tuple:
    strides = tuple(s // array.itemsize for s in array.strides)
    order = perm or tuple(range(array.ndim))
    dtype = "bfloat16" if array.dtype == ml_dtypes.bfloat16 else str(array.dtype)
    return (buffer, dtype, tuple(array.shape[p] for p in order), tuple(strides[p] for p in order), 0)


def _conv(
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray,
    pad: int,
    post_ops: list[str],
    extra: np.ndarray | None,
    algorithm: str,
) -> tuple[np.ndarray, str]:
    """Channels-last x, weights (3, 3, C, O)."""
    n, h, wd, _ = x.shape
    y = np.zeros((n, h + 2 * pad - 2, wd + 2 * pad - 2, w.shape[3]), x.dtype)
    program = rt.Program("conv")
    inputs = [_view(program.input(0, x.nbytes), x, (0, 3, 1, 2)), _view(program.constant(w), w, (3, 2, 0, 1))]
    inputs.append(_view(program.constant(bias), bias))
    feeds = [x]
    if extra is not None:
        inputs.append(_view(program.input(1, extra.nbytes), extra, (0, 3, 1, 2)))
        feeds.append(extra)
    out = _view(program.output(0, y.nbytes), y, (0, 3, 1, 2))
    attrs = {"pads_begin": [pad, pad], "pads_end": [pad, pad], "has_bias": True, "post_ops": post_ops}
    program.task("conv", "conv", inputs, [out], {**attrs, "algorithm": algorithm})
    program.finalize(0)
    program.run(feeds, [y])
    return y, program.task_info()[0]["impl"]


@pytest.mark.parametrize(
    ("shape", "outputs", "pad", "post_ops", "residual"),
    [
        ((1, 56, 56, 64), 64, 1, ["relu"], False),
        ((1, 14, 14, 256), 256, 1, ["add", "relu"], True),
        ((2, 17, 23, 48), 80, 1, ["clip,0.0,6.0"], False),
        ((3, 15, 18, 32), 32, 0, [], False),
        ((5, 30, 30, 128), 64, 1, ["add"], True),
        ((40, 9, 9, 512), 512, 1, [], False),
    ],
)
def test_winograd_equals_direct_convolution(
    shape: tuple, outputs: int, pad: int, post_ops: list[str], residual: bool
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape, np.float32)
    w = (rng.standard_normal((3, 3, shape[3], outputs)) / np.sqrt(9 * shape[3])).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    size = (shape[0], shape[1] + 2 * pad - 2, shape[2] + 2 * pad - 2, outputs)
    extra = rng.standard_normal(size).astype(np.float32) if residual else None
    y, impl = _conv(x, w, bias, pad, post_ops, extra, "auto")
    assert impl.startswith("winograd")
    expected = (
        torch.nn.functional.conv2d(
            torch.from_numpy(x).permute(0, 3, 1, 2).double(),
            torch.from_numpy(w).permute(3, 2, 0, 1).double(),
            torch.from_numpy(bias).double(),
            padding=pad,
        )
        .permute(0, 2, 3, 1)
        .numpy()
    )
    if extra is not None:
        expected = expected + extra
    if post_ops and post_ops[-1] == "relu":
        expected = np.maximum(expected, 0)
    if post_ops and post_ops[-1].startswith("clip"):
        expected = np.clip(expected, 0, 6)
    assert np.abs(y - expected).max() <= 2e-5 * np.abs(expected).max()
    direct, impl = _conv(x, w, bias, pad, post_ops, extra, "direct")
    assert not impl.startswith("winograd")
    assert np.abs(direct - expected).max() <= 2e-6 * np.abs(expected).max()


def test_winograd_reads_and_writes_bfloat16() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 40, 40, 64)).astype(ml_dtypes.bfloat16)
    w = (rng.standard_normal((3, 3, 64, 32)) / 24).astype(ml_dtypes.bfloat16)
    bias = np.zeros(32, np.float32)
    y, impl = _conv(x, w, bias, 1, ["relu"], None, "auto")
    assert impl.startswith("winograd")
    expected = (
        torch.nn.functional.conv2d(
            torch.from_numpy(x.astype(np.float64)).permute(0, 3, 1, 2),
            torch.from_numpy(w.astype(np.float64)).permute(3, 2, 0, 1),
            padding=1,
        )
        .relu()
        .permute(0, 2, 3, 1)
        .numpy()
    )
    assert np.abs(y.astype(np.float64) - expected).max() <= 2**-8 * np.abs(expected).max()


def test_few_tiles_stay_direct() -> None:
    x = np.zeros((1, 7, 7, 512), np.float32)
    w = np.zeros((3, 3, 512, 512), np.float32)
    _, impl = _conv(x, w, np.zeros(512, np.float32), 1, [], None, "auto")
    assert not impl.startswith("winograd")
