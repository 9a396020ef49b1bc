"""Signal processing: Fourier transforms, windows, mel weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ge.ir.types import FLOATS, TensorDesc, numpy_dtype
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.plugins import Node, Results, Unsupported, plugin


@register
class Dft(Operator):
    """The discrete Fourier transform along an axis, cut or filled with zeros to a length.

    The last axis of x holds real numbers (1) or pairs (2). With onesided the forward transform gives the
    first half only and the inverse takes it and gives real numbers.
    """

    x = Input("T", FLOATS)
    y = Output("T")
    axis = Attr(int, -2)
    length = Attr(int)
    inverse = Attr(bool, False)
    onesided = Attr(bool, False)
    aicpu = "dft"

    @staticmethod
    def verify(op: NodeView) -> None:
        desc = op.inputs[0]
        assert desc is not None
        if desc.rank < 2 or desc.shape[-1] not in (1, 2) or not -desc.rank <= op.axis < desc.rank:
            raise fail(op, f"{desc} does not hold numbers or pairs along axis {op.axis}")
        if op.length < 1 or op.axis % desc.rank == desc.rank - 1:
            raise fail(op, f"a transform of {op.length} points along axis {op.axis} is not possible")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        desc = op.inputs[0]
        assert desc is not None
        shape = list(desc.shape)
        shape[op.axis] = op.length // 2 + 1 if op.onesided and not op.inverse else op.length
        shape[-1] = 1 if op.onesided and op.inverse else 2
        return TensorDesc(tuple(shape), desc.dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x = np.asarray(arrays[0], np.float64)
        axis = op.axis % x.ndim
        pairs = x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0]
        if op.onesided and op.inverse:
            return [np.fft.irfft(pairs, op.length, axis=axis)[..., None]]
        y = (np.fft.ifft if op.inverse else np.fft.fft)(pairs, op.length, axis=axis)
        if op.onesided:
            y = np.take(y, np.arange(op.length // 2 + 1), axis=axis)
        return [np.stack([y.real, y.imag], -1)]

    @staticmethod
    def flops(op: NodeView) -> int:
        return int(5 * op.outputs[0].size * max(np.log2(op.length), 1))


@plugin(onnx="DFT")
def _dft(n: Node) -> Results:
    rank = n.desc().rank
    if n.version < 20:
        axis = int(n.attr("axis", 1))
    else:
        axis = n.ints(2, "axis")[0] if n.input(2) is not None else -2
    axis = axis % rank
    inverse, onesided = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    length = n.desc().shape[axis]
    if n.input(1) is not None:
        length = n.ints(1, "dft_length")[0]
    elif inverse and onesided:
        length = 2 * (length - 1)
    return n.op("Dft", n.inputs[0], axis=axis, length=length, inverse=inverse, onesided=onesided)


MAX_FRAMES = 1 << 28  # samples of all frames


@plugin(onnx="STFT")
def _stft(n: Node) -> Results:
    """Frames of the signal, times the window, transformed."""
    step = n.ints(1, "frame_step")[0]
    window = n.input(2)
    if n.input(3) is not None:
        length = n.ints(3, "frame_length")[0]
    elif window is not None:
        length = n.desc(2).shape[0]
    else:
        raise Unsupported("STFT has neither a window nor a frame length")
    batch, samples, parts = n.desc().shape if n.desc().rank == 3 else (*n.desc().shape, 1)
    x = n.op("Reshape", n.inputs[0], shape=[batch, samples, parts])
    if step < 1 or not 1 <= length <= samples:
        raise Unsupported(f"frames of {length} samples every {step} do not fit a signal of {samples} samples")
    frames = (samples - length) // step + 1
    if frames * length > MAX_FRAMES:
        raise Unsupported(
            f"{frames} frames of {length} samples are not supported", f"use at most {MAX_FRAMES} in all"
        )
    where = np.arange(frames)[:, None] * step + np.arange(length)
    framed = n.op("Gather", x, where.astype(np.int64), axis=1)  # (B, frames, length, parts)
    if window is not None:
        framed = n.op("Mul", framed, n.op("Reshape", window, shape=[length, 1]))
    onesided = bool(n.attr("onesided", 1)) and parts == 1
    return n.op("Dft", framed, axis=2, length=length, onesided=onesided)


MAX_WINDOW = 1 << 24
_WINDOWS = {
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


@plugin(onnx=list(_WINDOWS))
def _window(n: Node) -> Results:
    size = n.ints(0, "size")[0]
    if not 0 <= size <= MAX_WINDOW:
        raise Unsupported(f"a window of {size} elements is not supported", f"use at most {MAX_WINDOW}")
    dtype = n.element_type("output_datatype", "float32")
    span = size if n.attr("periodic", 1) else size - 1
    with np.errstate(invalid="ignore"):  # a symmetric window of one element is 0 / 0
        phase = 2 * np.pi * np.arange(size) / span
    a, b, c = _WINDOWS[n.type]
    return n.builder.constant(
        (a + b * np.cos(phase) + c * np.cos(2 * phase)).astype(numpy_dtype(dtype)), n.name
    )


@plugin(onnx="MelWeightMatrix")
def _mel(n: Node) -> Results:
    """Triangular filters, evenly spaced on the mel scale; all inputs are constants."""
    bins, length, rate = (n.ints(i)[0] for i in range(3))
    low, high = (float(n.const(i).reshape(-1)[0]) for i in (3, 4))
    dtype = n.element_type("output_datatype", "float32")

    def mel(hertz: float) -> float:
        return 2595 * math.log10(1 + hertz / 700)

    points = np.arange(bins + 2) * ((mel(high) - mel(low)) / (bins + 2)) + mel(low)
    edges = np.floor((length + 1) * (700 * (10 ** (points / 2595) - 1)) / rate).astype(np.int64)
    y = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        left, centre, right = edges[i : i + 3]
        if centre == left:
            y[centre, i] = 1
        else:
            rising = np.arange(left, centre + 1)
            y[rising, i] = (rising - left) / (centre - left)
        if right > centre:
            falling = np.arange(centre, right)
            y[falling, i] = (right - falling) / (right - centre)
    return n.builder.constant(y.astype(numpy_dtype(dtype)), n.name)
