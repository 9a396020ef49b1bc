"""Signal processing: Fourier transforms as products with constant matrices, windows, mel weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype
from ge.ir.values import desc_of
from ge.parsers.plugin import Node, Results, Unsupported, plugin

MAX_LENGTH = 8192  # the matrices of a longer transform would not be worth their memory


def fourier(n: Node, x: Any, axis: int, length: int, inverse: bool, onesided: bool) -> Any:
    """The transform of x (…, 1 or 2) along an axis; the last axis holds the real and the imaginary part."""
    shape = desc_of(x).shape
    rank, dtype = len(shape), desc_of(x).dtype
    if length > MAX_LENGTH:
        raise Unsupported(f"a Fourier transform of {length} points is not supported", f"use at most {MAX_LENGTH} points")
    x = _fitted(n, x, axis, length)
    perm = [i for i in range(rank - 1) if i != axis] + [rank - 1, axis]
    turned = n.op("Transpose", x, perm=perm)  # (…, parts, length)
    parts = shape[-1]
    bins = length // 2 + 1 if onesided and not inverse else length
    angles = 2 * np.pi * np.outer(np.arange(length), np.arange(bins)) / length
    cos, sin = np.cos(angles), np.sin(angles)
    sign = 1.0 if inverse else -1.0
    factor = 1 / length if inverse else 1.0
    real = _matrix(n, factor * np.stack([cos, -sign * sin][:parts]), dtype)
    imaginary = _matrix(n, factor * np.stack([sign * sin, cos][:parts]), dtype)
    lead = [d for i, d in enumerate(desc_of(turned).shape) if i < rank - 2]
    flat = n.op("Reshape", turned, shape=[*lead, 1, parts * length])
    pieces = [n.op("MatMul", flat, m) for m in (real, imaginary)]
    y = n.op("Concat", *pieces, axis=rank - 2)  # (…, 2, bins)
    back = [int(i) for i in np.argsort(perm)]
    return n.op("Transpose", y, perm=back)


def _matrix(n: Node, stacked: np.ndarray, dtype: str) -> Any:
    return n.builder.constant(stacked.reshape(-1, stacked.shape[-1]).astype(numpy_dtype(dtype)))


def _fitted(n: Node, x: Any, axis: int, length: int) -> Any:
    """x cut or filled with zeros to a length along an axis."""
    shape = list(desc_of(x).shape)
    if shape[axis] > length:
        ends = [length if i == axis else d for i, d in enumerate(shape)]
        return n.op("Slice", x, starts=[0] * len(shape), ends=ends)
    if shape[axis] == length:
        return x
    high = [length - d if i == axis else 0 for i, d in enumerate(shape)]
    return n.op("Pad", x, low=[0] * len(shape), high=high)


@plugin(onnx="DFT")
def _dft(n: Node) -> Results:
    rank = n.desc().rank
    if n.version < 20:
        axis = int(n.attr("axis", 1))
    else:
        axis = n.ints(2, "axis")[0] if n.input(2) is not None else -2
    axis = axis % rank
    length = n.ints(1, "dft_length")[0] if n.input(1) is not None else n.desc().shape[axis]
    inverse, onesided = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    if inverse and onesided:
        return _real_inverse(n, axis, length)
    return fourier(n, n.inputs[0], axis, length, inverse, onesided)  # type: ignore[no-any-return]


def _real_inverse(n: Node, axis: int, length: int) -> Results:
    """The real signal of which x is the first half of the transform."""
    if n.input(1) is None:
        length = 2 * (n.desc().shape[axis] - 1)
    bins = length // 2 + 1
    x = _fitted(n, n.inputs[0], axis, bins)
    shape = list(desc_of(x).shape)
    mirrored = n.op("Slice", x, starts=[0] * len(shape), ends=shape)
    count = length - bins
    starts = [bins - 1 - (1 if length % 2 == 0 else 0) if i == axis else 0 for i in range(len(shape))]
    ends = [starts[axis] - count if i == axis else d for i, d in enumerate(shape)]
    steps = [-1 if i == axis else 1 for i in range(len(shape))]
    mirrored = n.op("Slice", x, starts=starts, ends=ends, steps=steps)
    signs = np.asarray([1, -1], numpy_dtype(n.desc().dtype))
    whole = n.op("Concat", x, n.op("Mul", mirrored, signs), axis=axis) if count else x
    y = fourier(n, whole, axis, length, True, False)
    shape = list(desc_of(y).shape)
    return n.op("Slice", y, starts=[0] * len(shape), ends=[*shape[:-1], 1])


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
    frames = (samples - length) // step + 1
    where = np.arange(frames)[:, None] * step + np.arange(length)
    framed = n.op("Gather", x, where.astype(np.int64), axis=1)  # (B, frames, length, parts)
    if window is not None:
        framed = n.op("Mul", framed, n.op("Reshape", window, shape=[length, 1]))
    onesided = bool(n.attr("onesided", 1)) and parts == 1
    return fourier(n, framed, 2, length, False, onesided)  # type: ignore[no-any-return]


_WINDOWS = {
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


@plugin(onnx=list(_WINDOWS))
def _window(n: Node) -> Results:
    size = n.ints(0, "size")[0]
    dtype = n.element_type("output_datatype", "float32")
    span = size if n.attr("periodic", 1) else max(size - 1, 1)
    phase = 2 * np.pi * np.arange(size) / span
    a, b, c = _WINDOWS[n.type]
    return n.builder.constant((a + b * np.cos(phase) + c * np.cos(2 * phase)).astype(numpy_dtype(dtype)), n.name)


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
