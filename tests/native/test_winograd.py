"""Convolutions that run as Winograd give what a direct convolution gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import npu_runtime as rt
from tests.native.native_support import needs_avx2, view

pytestmark = needs_avx2


def _conv(
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray,
    pad: int,
    post_ops: list[str],
    extra: np.ndarray | None,
    implementation: str,
) -> tuple[np.ndarray, str]:
    """Channels-last x, weights (3, 3, C, O)."""
    n, h, wd, _ = x.shape
    y = np.zeros((n, h + 2 * pad - 2, wd + 2 * pad - 2, w.shape[3]), x.dtype)
    program = rt.Program("conv")
    inputs = [view(program.input(0, x.nbytes), x, (0, 3, 1, 2)), view(program.constant(w), w, (3, 2, 0, 1))]
    inputs.append(view(program.constant(bias), bias))
    feeds = [x]
    if extra is not None:
        inputs.append(view(program.input(1, extra.nbytes), extra, (0, 3, 1, 2)))
        feeds.append(extra)
    out = view(program.output(0, y.nbytes), y, (0, 3, 1, 2))
    attrs = {"pads_begin": [pad, pad], "pads_end": [pad, pad], "has_bias": True, "post_ops": post_ops}
    program.task("conv", "conv", inputs, [out], {**attrs, "implementation": implementation})
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
    y, impl = _conv(x, w, bias, pad, post_ops, extra, "winograd")
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
    assert np.abs(y - expected).max() <= 8e-6 * np.abs(expected).max()
    direct, impl = _conv(x, w, bias, pad, post_ops, extra, "onednn")
    assert not impl.startswith("winograd")
    assert np.abs(direct - expected).max() <= 2e-6 * np.abs(expected).max()


def test_winograd_reads_and_writes_bfloat16() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 40, 40, 64)).astype(ml_dtypes.bfloat16)
    w = (rng.standard_normal((3, 3, 64, 32)) / 24).astype(ml_dtypes.bfloat16)
    bias = np.zeros(32, np.float32)
    y, impl = _conv(x, w, bias, 1, ["relu"], None, "winograd")
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


def _variable(
    kind: str,
    x: np.ndarray,
    w: np.ndarray,
    weight_perm: tuple[int, ...],
    pad: int,
    implementation: str = "winograd",
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, str]:
    """Channels-last x and weights that are an input, viewed by `weight_perm` as the task wants them."""
    n, h, wd, _ = x.shape
    grown = 2 * pad - 2 if kind == "conv" else 2 - 2 * pad
    outputs = w.shape[weight_perm[0 if kind == "conv" else 1]]
    y = np.full((n, h + grown, wd + grown, outputs), np.nan, x.dtype)
    program = rt.Program(kind)
    inputs = [
        view(program.input(0, x.nbytes), x, (0, 3, 1, 2)),
        view(program.input(1, w.nbytes), w, weight_perm),
    ]
    feeds = [x, w]
    attrs = {"pads_begin": [pad, pad], "pads_end": [pad, pad], "implementation": implementation}
    if bias is not None:
        row = bias.reshape(1, 1, 1, -1)
        inputs.append(view(program.input(2, row.nbytes), row, (0, 3, 1, 2)))
        feeds.append(row)
        attrs["post_ops"] = ["add", "relu"]
    program.task(kind, kind, inputs, [view(program.output(0, y.nbytes), y, (0, 3, 1, 2))], attrs)
    program.finalize(0)
    program.run([np.zeros_like(f) for f in feeds], [y])  # what another run saw must not matter
    program.run(feeds, [y])
    return y, program.task_info()[0]["impl"]


def _reference(kind: str, x: np.ndarray, w: np.ndarray, weight_perm: tuple[int, ...], pad: int) -> np.ndarray:
    source = torch.from_numpy(x.astype(np.float64)).permute(0, 3, 1, 2)
    weights = torch.from_numpy(w.astype(np.float64)).permute(*weight_perm)
    apply = torch.nn.functional.conv2d if kind == "conv" else torch.nn.functional.conv_transpose2d
    return apply(source, weights, padding=pad).permute(0, 2, 3, 1).numpy()


LAYOUTS = {  # how weights (O, I, 3, 3) lie in memory, and the way back
    "HWIO": ((2, 3, 1, 0), (3, 2, 0, 1)),
    "OIHW": ((0, 1, 2, 3), (0, 1, 2, 3)),
    "HWOI": ((2, 3, 0, 1), (2, 3, 0, 1)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["conv", "deconv"])
@pytest.mark.parametrize(
    ("shape", "outputs", "pad"),
    [
        ((2, 17, 23, 48), 80, 1),
        ((16, 8, 8, 32), 64, 0),
        ((3, 15, 18, 64), 32, 2),
        ((40, 9, 9, 256), 448, 1),
    ],
)
def test_variable_weights(kind: str, layout: str, shape: tuple, outputs: int, pad: int) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape, np.float32)
    ends = (outputs, shape[3]) if kind == "conv" else (shape[3], outputs)
    there, back = LAYOUTS[layout]
    w = rng.standard_normal((*ends, 3, 3), np.float32) / np.sqrt(9 * shape[3], dtype=np.float32)
    w = np.ascontiguousarray(w.transpose(there))
    expected = _reference(kind, x, w, back, pad)
    y, impl = _variable(kind, x, w, back, pad)
    assert impl.startswith("winograd")
    assert np.abs(y - expected).max() <= 8e-6 * np.abs(expected).max()
    direct, impl = _variable(kind, x, w, back, pad, "onednn")
    assert not impl.startswith("winograd")
    assert np.abs(direct - expected).max() <= 4e-6 * np.abs(expected).max()


def test_variable_bias_of_a_training_step() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 16, 16, 32), np.float32)
    w = rng.standard_normal((3, 3, 32, 64), np.float32) / np.float32(17)
    bias = rng.standard_normal(64, np.float32)
    y, impl = _variable("conv", x, w, (3, 2, 0, 1), 1, bias=bias)
    assert impl.startswith("winograd")
    expected = np.maximum(_reference("conv", x, w, (3, 2, 0, 1), 1) + bias, 0)
    assert np.abs(y - expected).max() <= 8e-6 * np.abs(expected).max()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_shape(data: st.DataObject) -> None:
    """Errors are those of float32 arithmetic; in bfloat16 the result is rounded once."""
    kind = data.draw(st.sampled_from(["conv", "deconv"]))
    dtype = data.draw(st.sampled_from([np.float32, ml_dtypes.bfloat16]))
    channels, outputs = (16 * data.draw(st.integers(1, 10)) for _ in range(2))
    height, width = (data.draw(st.integers(1, 30)) for _ in range(2))
    pad = data.draw(st.integers(0, 2))
    grown = 2 * pad - 2 if kind == "conv" else 2 - 2 * pad
    images = data.draw(st.integers(1, 4))
    assume(height + grown > 0 and width + grown > 0)
    there, back = LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))]
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    x = rng.standard_normal((images, height, width, channels), np.float32).astype(dtype)
    ends = (outputs, channels) if kind == "conv" else (channels, outputs)
    w = (rng.standard_normal((*ends, 3, 3)) / np.sqrt(9 * channels)).astype(dtype)
    w = np.ascontiguousarray(w.transpose(there))
    expected = _reference(kind, x, w, back, pad)
    y, impl = _variable(kind, x, w, back, pad)
    assert impl.startswith("winograd")
    error = np.abs(y.astype(np.float64) - expected)
    rounding = 0 if dtype == np.float32 else 2**-8 * np.abs(expected)
    assert (error <= rounding + 8e-6 * np.abs(expected).max()).all()
