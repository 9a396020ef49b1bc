"""Resizing, one axis at a time: each output position is a weighted sum of a few input positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge.ir.types import FLOATS, NUMBERS, TensorDesc, numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.plugins import Node, Results, Unsupported, plugin

MAX_TAPS = 4  # more taps per position become one sum over all of them


@dataclass(frozen=True)
class Axis:
    """How one axis is resized."""

    size: int
    out: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


# The input coordinate of an output position, by coordinate mode.
_COORDINATES: dict[str, Callable[[np.ndarray, Axis], np.ndarray]] = {
    "half_pixel": lambda i, a: (i + 0.5) / a.scale - 0.5,
    "pytorch_half_pixel": lambda i, a: (i + 0.5) / a.scale - 0.5 if a.out > 1 else i * 0.0,
    "half_pixel_symmetric": lambda i, a: _symmetric(i, a),
    "align_corners": lambda i, a: i * ((a.size - 1) / (a.scale * a.size - 1)) if a.out > 1 else i * 0.0,
    "asymmetric": lambda i, a: i / a.scale,
    "tf_half_pixel_for_nn": lambda i, a: (i + 0.5) / a.scale,
    "tf_crop_and_resize": lambda i, a: _cropped(i, a),
}


def _symmetric(i: np.ndarray, a: Axis) -> np.ndarray:
    """half_pixel, kept symmetric if the size is not an integral multiple."""
    adjustment = a.out / (a.scale * a.size)
    offset = a.size / 2 * (1 - adjustment)
    return offset + (i + 0.5) / a.scale - 0.5


def _cropped(i: np.ndarray, a: Axis) -> np.ndarray:
    start, end = a.roi
    if a.out == 1:
        return np.full_like(i, 0.5 * (start + end) * (a.size - 1))
    return start * (a.size - 1) + i * (end - start) * (a.size - 1) / (a.out - 1)


# The nearest neighbour, by rounding mode.
_ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(a: float) -> Callable[[np.ndarray], np.ndarray]:
    def weight(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        return np.where(x <= 1, near, np.where(x < 2, far, 0.0))

    return weight


MAX_POSITIONS = 1 << 24  # along an axis, each of which is computed when the graph is built


@register
class Resize(Operator):
    """x resized along axes to sizes.

    `scales` are the exact factors where they differ from the ratio of sizes; `roi` holds start and end of
    each axis (as fractions) for tf_crop_and_resize.
    """

    x = Input("T", NUMBERS)
    y = Output("T")
    axes = Attr(list)
    sizes = Attr(list)
    scales = Attr(list, None, item=float)
    mode = Attr(str, "linear", choices=("nearest", "linear", "cubic"))
    coordinates = Attr(str, "half_pixel", choices=tuple(_COORDINATES))
    rounding = Attr(str, "round_prefer_floor", choices=tuple(_ROUNDING))
    cubic_a = Attr(float, -0.75)
    exclude_outside = Attr(bool, False)
    antialias = Attr(bool, False)
    roi = Attr(list, None, item=float)
    extrapolation = Attr(float, 0.0)

    @staticmethod
    def verify(op: NodeView) -> None:
        desc = op.inputs[0]
        assert desc is not None
        if len(op.axes) != len(op.sizes) or any(not -desc.rank <= a < desc.rank for a in op.axes):
            raise fail(op, f"axes {list(op.axes)} and sizes {list(op.sizes)} do not match {desc}")
        if any(s < 1 for s in op.sizes):
            raise fail(op, f"sizes {list(op.sizes)} must be positive")
        if any(s > MAX_POSITIONS for s in op.sizes):
            raise fail(op, f"sizes {list(op.sizes)} are too large", f"use at most {MAX_POSITIONS} positions")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        raise AssertionError("Resize is always expanded")

    @staticmethod
    def expand(builder: Any, op: NodeView, x: Any) -> Any:
        dtype = desc_of(x).dtype
        direct = op.mode == "nearest" or dtype in FLOATS
        x = x if direct else builder.op("Cast", x, to="float32")
        outside: list[tuple[int, np.ndarray]] = []
        for axis, part in _axes_of(op):
            x, beyond = _along(builder, op, x, axis, part)
            if beyond.any():
                outside.append((axis, beyond))
        for axis, beyond in outside:
            shape = [-1 if i == axis else 1 for i in range(len(desc_of(x).shape))]
            x = builder.op("Select", beyond.reshape(shape), float(op.extrapolation), x)
        return x if direct else builder.op("Cast", builder.op("Round", x), to=dtype)


def _axes_of(op: NodeView) -> list[tuple[int, Axis]]:
    """The axes that change, the one that shrinks most first (it leaves the least work for the others)."""
    shape = op.inputs[0].shape  # type: ignore[union-attr]
    found = []
    for index, (axis, out) in enumerate(zip(op.axes, op.sizes, strict=True)):
        axis = axis % len(shape)
        scale = op.scales[index] if op.scales else out / shape[axis]
        roi = (op.roi[2 * index], op.roi[2 * index + 1]) if op.roi else (0.0, 1.0)
        part = Axis(shape[axis], out, scale, roi)
        if out != shape[axis] or scale != 1 or op.coordinates == "tf_crop_and_resize":
            found.append((axis, part))
    return sorted(found, key=lambda item: item[1].out / max(item[1].size, 1))


def _along(builder: Any, op: NodeView, x: Any, axis: int, part: Axis) -> tuple[Any, np.ndarray]:
    """x resized along one axis, and the output positions outside (which are extrapolated)."""
    where = _COORDINATES[op.coordinates](np.arange(part.out, dtype=np.float64), part)
    beyond = np.zeros(part.out, bool)
    if op.coordinates == "tf_crop_and_resize":
        beyond = (where < 0) | (where > part.size - 1)
    if op.mode == "nearest":
        index = np.clip(_ROUNDING[op.rounding](where), 0, part.size - 1).astype(np.int64)
        return builder.op("Gather", x, index, axis=axis), beyond
    indices, weights = taps(op, where, part)
    return _weighted(builder, x, axis, indices, weights), beyond


def taps(op: NodeView, where: np.ndarray, part: Axis) -> tuple[np.ndarray, np.ndarray]:
    """The input positions that each output position reads (out, taps), clamped, and their weights."""
    stretch = max(1 / part.scale, 1.0) if op.antialias else 1.0
    kernel, reach = (_linear, 1) if op.mode == "linear" else (_cubic(op.cubic_a), 2)
    support = reach * stretch
    if stretch == 1.0:
        first = np.floor(where).astype(np.int64) - (reach - 1)
        count = 2 * reach
    else:
        first = np.floor(where - support).astype(np.int64) + 1
        count = math.ceil(2 * support)
    if count > 4 * part.size + 16:
        raise ValueError(f"a scale of {part.scale} is too small for {part.size} elements")
    indices = first[:, None] + np.arange(count)
    weights = kernel((indices - where[:, None]) / stretch)
    inside = (indices >= 0) & (indices < part.size)
    if op.exclude_outside or stretch != 1.0:
        weights = weights * inside if op.exclude_outside else weights
    if op.exclude_outside or stretch != 1.0:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(indices, 0, part.size - 1), weights


def _weighted(
    builder: Any, x: Any, axis: int, indices: np.ndarray, weights: np.ndarray, ragged: bool = False
) -> Any:
    """Sums of what each position reads; with `ragged`, a position does not read what has no weight."""
    desc = desc_of(x)
    real, count = numpy_dtype(desc.dtype), indices.shape[1]
    shape = [-1 if i == axis else 1 for i in range(desc.rank)]

    def scaled(piece: Any, factors: np.ndarray, shape: list[int]) -> Any:
        if not (factors == 1).all():
            piece = builder.op("Mul", piece, factors.astype(real).reshape(shape))
        if not ragged or factors.all():
            return piece
        return builder.op("Select", (factors != 0).reshape(shape), piece, np.zeros((), real))

    if count > MAX_TAPS:
        read = builder.op("Gather", x, indices.reshape(-1), axis=axis)
        read = builder.op(
            "Reshape", read, shape=[*desc.shape[:axis], *indices.shape, *desc.shape[axis + 1 :]]
        )
        shape = [indices.shape[i - axis] if i in (axis, axis + 1) else 1 for i in range(desc.rank + 1)]
        return builder.op("ReduceSum", scaled(read, weights, shape), axes=[axis + 1])
    total: Any = None
    for tap in range(count):
        if not weights[:, tap].any():
            continue
        piece = scaled(builder.op("Gather", x, indices[:, tap], axis=axis), weights[:, tap], shape)
        total = piece if total is None else builder.op("Add", total, piece)
    return total


# -- ONNX --------------------------------------------------------------------------------------------------


@plugin(onnx="Upsample")
def _upsample(n: Node) -> Results:
    scales = n.attr("scales") if n.version < 9 else n.const(1, "scales").tolist()
    return _resized(n, [float(s) for s in scales], None, coordinates="asymmetric", rounding="floor")


@plugin(onnx="Resize")
def _resize_10(n: Node) -> Results:
    scales = [float(s) for s in n.const(1, "scales").reshape(-1)]
    return _resized(n, scales, None, coordinates="asymmetric", rounding="floor")


@plugin(onnx="Resize", since=11)
def _resize(n: Node) -> Results:
    scales = [float(s) for s in n.const(2, "scales").reshape(-1)] if n.input(2) is not None else []
    sizes = n.ints(3, "sizes") if n.input(3) is not None else []
    coordinates = n.attr("coordinate_transformation_mode", "half_pixel")
    roi = None
    if coordinates == "tf_crop_and_resize":
        roi = [float(v) for v in n.const(1, "roi").reshape(-1)]
    return _resized(
        n,
        scales or None,
        sizes or None,
        roi=roi,
        coordinates=coordinates,
        rounding=n.attr("nearest_mode", "round_prefer_floor"),
        cubic_a=float(n.attr("cubic_coeff_a", -0.75)),
        exclude_outside=bool(n.attr("exclude_outside", 0)),
        antialias=bool(n.attr("antialias", 0)),
        extrapolation=float(n.attr("extrapolation_value", 0.0)),
    )


def _resized(
    n: Node, scales: list[float] | None, sizes: list[int] | None, roi: list[float] | None = None, **attrs: Any
) -> Results:
    shape = n.desc().shape
    axes = [int(a) % len(shape) for a in n.attr("axes") or range(len(shape))]
    if scales is None and sizes is None:
        raise Unsupported("Resize has neither scales nor sizes")
    if sizes is None:
        assert scales is not None
        sizes = [math.floor(shape[a] * s) for a, s in zip(axes, scales, strict=True)]
    else:
        sizes, scales = _kept_ratio(n, [shape[a] for a in axes], sizes)
    pairs = None
    if roi is not None:
        half = len(roi) // 2
        pairs = [v for i in range(half) for v in (roi[i], roi[half + i])]
    mode = n.attr("mode", "nearest")
    mode = {"bilinear": "linear"}.get(mode, mode)
    return n.op("Resize", n.inputs[0], axes=axes, sizes=sizes, scales=scales, mode=mode, roi=pairs, **attrs)


def _kept_ratio(n: Node, shape: Sequence[int], sizes: list[int]) -> tuple[list[int], list[float]]:
    """Sizes and scales under keep_aspect_ratio_policy."""
    ratios = [t / s for t, s in zip(sizes, shape, strict=True)]
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return sizes, ratios
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [math.floor(ratio * s + 0.5) for s in shape], [ratio] * len(shape)


# -- TensorFlow --------------------------------------------------------------------------------------------


def _image_axes(n: Node) -> list[tuple[int, int, int]]:
    """Axis, size and target size of the height and width of images (N, H, W, C)."""
    shape = n.desc().shape
    return [(axis, shape[axis], out) for axis, out in zip((1, 2), n.ints(1, "the size"), strict=True)]


def _scale_tf(n: Node, size: int, out: int) -> np.float32:
    """The distance of output positions in the input, in single precision as in TensorFlow."""
    if n.attr("align_corners", False) and out > 1:
        return np.float32(size - 1) / np.float32(out - 1)
    return np.float32(size) / np.float32(out)


def _places_tf(n: Node, size: int, out: int) -> np.ndarray:
    """The input coordinates of output positions."""
    i = np.arange(out, dtype=np.float32)
    scale = _scale_tf(n, size, out)
    return (
        (i + np.float32(0.5)) * scale - np.float32(0.5) if n.attr("half_pixel_centers", False) else i * scale
    )


def _cast(n: Node, x: Any, dtype: str) -> Any:
    return x if desc_of(x).dtype == dtype else n.op("Cast", x, to=dtype)


def _as_float(n: Node) -> Any:
    return _cast(n, n.inputs[0], "float32")


Taps = tuple[np.ndarray, np.ndarray]


def _separable(n: Node, x: Any, taps_of: Callable[[int, int], Taps]) -> Any:
    """Images resized along height and width by the taps (positions and weights) of each axis."""
    for axis, size, out in _image_axes(n):
        indices, weights = taps_of(size, out)
        x = _weighted(n.builder, x, axis, indices, weights, n.type == "ResizeArea")
    return x


def _nearest_taps(n: Node, size: int, out: int) -> Taps:
    where = np.arange(out, dtype=np.float32)
    where = where + np.float32(0.5) if n.attr("half_pixel_centers", False) else where
    where = where * _scale_tf(n, size, out)
    nearest = np.floor(where + np.float32(0.5)) if n.attr("align_corners", False) else np.floor(where)
    return nearest.clip(0, size - 1).astype(np.int64)[:, None], np.ones((out, 1))


def _linear_taps(n: Node, size: int, out: int) -> Taps:
    where = _places_tf(n, size, out)
    low = np.floor(where)
    t = where - low
    indices = np.stack([low, np.ceil(where)], 1).clip(0, size - 1).astype(np.int64)
    return indices, np.stack([1 - t, t], 1)


@plugin(tensorflow="ResizeBilinear")
def _resize_bilinear(n: Node) -> Results:
    """The left neighbour plus a share of the difference: so NaN and infinities are where TensorFlow has them."""
    x, axes = _as_float(n), _image_axes(n)
    if all(size == out for _, size, out in axes):
        return x
    for axis, size, out in reversed(axes):
        indices, weights = _linear_taps(n, size, out)
        low, high = (n.op("Gather", x, side, axis=axis) for side in indices.T)
        share = weights[:, 1].astype(np.float32).reshape([-1 if i == axis else 1 for i in range(4)])
        x = n.op("Add", low, n.op("Mul", n.op("Sub", high, low), share))
    return x


@plugin(tensorflow="ResizeNearestNeighbor")
def _resize_nearest(n: Node) -> Results:
    return _separable(n, n.inputs[0], lambda size, out: _nearest_taps(n, size, out))


_CUBIC_STEPS = 1024  # entries of TensorFlow's table of weights between two pixels


def _cubic_taps(n: Node, size: int, out: int) -> Taps:
    """With half-pixel centres, pixels outside do not count; otherwise they repeat the border."""
    centred = bool(n.attr("half_pixel_centers", False))
    where = _places_tf(n, size, out).astype(np.float64)
    low = np.floor(where)
    t = np.rint((where - low) * _CUBIC_STEPS) / _CUBIC_STEPS
    indices = low[:, None].astype(np.int64) + np.arange(-1, 3)
    weights = _cubic(-0.5 if centred else -0.75)(np.arange(-1, 3) - t[:, None])
    if centred:
        weights = weights * ((indices >= 0) & (indices < size))
        weights = weights / weights.sum(axis=1, keepdims=True)
    return indices.clip(0, size - 1), weights


@plugin(tensorflow="ResizeBicubic")
def _resize_bicubic(n: Node) -> Results:
    return _separable(n, _as_float(n), lambda size, out: _cubic_taps(n, size, out))


def _taps_of_matrix(matrix: np.ndarray) -> Taps:
    """A matrix (out, size) as the positions that each row reads and their weights."""
    count = max(int((matrix != 0).sum(axis=1).max(initial=1)), 1)
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :count]
    return order.astype(np.int64), np.take_along_axis(matrix, order, 1)


@plugin(tensorflow="ResizeArea")
def _resize_area(n: Node) -> Results:
    """Each output pixel is the mean of the area it covers."""

    def taps_of(size: int, out: int) -> Taps:
        if size == 1:  # with aligned corners, the areas are empty
            return np.zeros((out, 1), np.int64), np.ones((out, 1))
        scale = float(_scale_tf(n, size, out))
        ends = np.arange(out + 1, dtype=np.float32)[:, None] * np.float32(scale)
        pixel = np.arange(math.ceil(ends[-1, 0]))[None, :]
        covered = np.clip(np.minimum(ends[1:], pixel + 1) - np.maximum(ends[:-1], pixel), 0, None) / scale
        matrix = np.zeros((out, size))
        for column, weights in zip(pixel[0].clip(0, size - 1), covered.T, strict=True):
            matrix[:, column] += weights
        return _taps_of_matrix(matrix)

    return _separable(n, _as_float(n), taps_of)


def _lanczos(radius: float) -> tuple[float, Callable[[np.ndarray], np.ndarray]]:
    return radius, lambda x: np.where(np.abs(x) < radius, np.sinc(x) * np.sinc(x / radius), 0.0)


def _gaussian(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 1.5, np.exp(-(x**2) / (2 * 0.5**2)), 0.0)


def _mitchell(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    near = ((7 * x - 12) * x * x + 16 / 3) / 6
    far = (((-7 / 3 * x + 12) * x - 20) * x + 32 / 3) / 6
    return np.where(x >= 2, 0.0, np.where(x >= 1, far, near))


# Kernels by name: their radius, and their weights.
_KERNELS: dict[str, tuple[float, Callable[[np.ndarray], np.ndarray]]] = {
    "lanczos1": _lanczos(1.0),
    "lanczos3": _lanczos(3.0),
    "lanczos5": _lanczos(5.0),
    "gaussian": (1.5, _gaussian),
    "box": (1.0, lambda x: np.where(np.abs(x) < 0.5, 1.0, np.where(np.abs(x) == 0.5, 0.5, 0.0))),
    "triangle": (1.0, _linear),
    "keyscubic": (2.0, _cubic(-0.5)),
    "mitchellcubic": (2.0, _mitchell),
}


def _kernel_matrix(n: Node, index: int, size: int, out: int) -> np.ndarray:
    """The weights (out, size) of a resampling along one axis of an image."""
    kind = str(n.attr("kernel_type", "lanczos3"))
    if kind not in _KERNELS:
        raise Unsupported(f"the kernel {kind} of ScaleAndTranslate is unknown")
    reach, kernel = _KERNELS[kind]
    scales, shifts = n.const(2, "the scale").reshape(-1), n.const(3, "the translation").reshape(-1)
    step = 1.0 / float(scales[index])
    wide = max(step, 1.0) if n.attr("antialias", True) else 1.0
    where = (np.arange(out) + 0.5) * step - float(shifts[index]) * step
    matrix = kernel((np.arange(size) + 0.5 - where[:, None]) / wide)
    matrix = matrix * (np.abs(np.arange(size) + 0.5 - where[:, None]) <= reach * wide)
    total = matrix.sum(axis=1, keepdims=True)
    inside = ((where >= 0) & (where <= size))[:, None] & (np.abs(total) > 1e-35)
    return np.where(inside, matrix / np.where(inside, total, 1), 0)


@plugin(tensorflow="ScaleAndTranslate")
def _scale_and_translate(n: Node) -> Results:
    """Resampling by a kernel, widened when it shrinks; positions outside the image are zero."""
    x: Any = _as_float(n)
    for index, (axis, size, out) in enumerate(_image_axes(n)):
        matrix = _kernel_matrix(n, index, size, out)
        x = _weighted(n.builder, x, axis, *_taps_of_matrix(matrix), ragged=True)
    return x


def _matrix_of_taps(taps_: Taps, size: int) -> np.ndarray:
    """Taps as a matrix (out, size)."""
    indices, weights = taps_
    matrix = np.zeros((len(indices), size))
    for tap in range(indices.shape[1]):
        np.add.at(matrix, (np.arange(len(indices)), indices[:, tap]), weights[:, tap])
    return matrix


def resize_gradient(builder: Any, gradient: Any, sizes: Mapping[int, int], **resize: Any) -> Any:
    """The gradient of `Resize` by its input, from the input's sizes by axis and the attributes of the operator.

    1. Along each axis, `Resize` of the unit vectors is the matrix of the interpolation.
    2. Each position of the input collects what it contributed to; others do not reach it, so that NaN does not spread.
    """
    for axis, size in sizes.items():
        out = desc_of(gradient).shape[axis]
        unit = builder.constant(np.eye(size, dtype=np.float32))
        matrix = constant_of(builder.op("Resize", unit, axes=[0], sizes=[out], **resize))
        assert matrix is not None, "Resize of a constant is a constant"
        gradient = _weighted(builder, gradient, axis, *_taps_of_matrix(matrix.T), ragged=True)
    return gradient


_GRADIENT_TAPS = {
    "ResizeNearestNeighborGrad": _nearest_taps,
    "ResizeBilinearGrad": _linear_taps,
    "ResizeBicubicGrad": _cubic_taps,
}


@plugin(tensorflow=["ResizeNearestNeighborGrad", "ResizeBilinearGrad", "ResizeBicubicGrad"])
def _resize_gradient(n: Node) -> Results:
    """The transposed interpolation: each input position collects the gradients of what it contributed to.

    Nearest neighbours sum integers too, exactly in a floating type; the cast by way of int64 wraps around.
    """
    nearest = n.type.startswith("ResizeNearest")
    sizes = n.ints(1, "the size") if nearest else n.desc(1).shape[1:3]
    taps_of = _GRADIENT_TAPS[n.type]
    wide = nearest and n.desc().dtype in ("float64", "int32")
    x: Any = _cast(n, n.inputs[0], "float64") if wide else _as_float(n)
    for axis, size in zip((1, 2), sizes, strict=True):
        out = n.desc().shape[axis]
        matrix = _matrix_of_taps(taps_of(n, size, out), size).T
        x = _weighted(n.builder, x, axis, *_taps_of_matrix(matrix), ragged=True)
    dtype = n.desc().dtype if nearest else n.desc(1).dtype
    return _cast(n, x if dtype in FLOATS else _cast(n, x, "int64"), dtype)


@plugin(tensorflow="ScaleAndTranslateGrad")
def _resample_gradient(n: Node) -> Results:
    """The transposed resampling by a kernel."""
    x: Any = _as_float(n)
    for index, axis in enumerate((1, 2)):
        size, out = n.desc(1).shape[axis], n.desc().shape[axis]
        matrix = _kernel_matrix(n, index, size, out).T
        x = _weighted(n.builder, x, axis, *_taps_of_matrix(matrix), ragged=True)
    return _cast(n, x, n.desc(1).dtype)


# -- ATen ------------------------------------------------------------------------------------------------


def _resized_aten(n: AtenNode, mode: str, coordinates: str, **attrs: Any) -> Any:
    x = n.arg("self", n.arg("input"))
    desc, out = desc_of(x), n.out()
    space = desc.rank - 2
    if desc.dtype not in FLOATS or not desc.size:
        raise Unsupported(f"{desc} resized")
    scales = [n.arg(k) for k in ("scales_d", "scales_h", "scales_w", "scales")]
    given = [float(s) for s in scales if s is not None] or [float(s) for s in n.arg("scale_factors", [])]
    axes = list(range(2, desc.rank))
    if given and len(given) == space and not n.arg("align_corners"):
        attrs["scales"] = given
    sizes = list(out.shape[2:])
    return n.back(
        n.op("Resize", n.wide(x), axes=axes, sizes=sizes, mode=mode, coordinates=coordinates, **attrs)
    )


@aten("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _nearest(n: AtenNode) -> Any:
    return _resized_aten(n, "nearest", "asymmetric", rounding="floor")


@aten("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def _nearest_exact(n: AtenNode) -> Any:
    return _resized_aten(n, "nearest", "half_pixel", rounding="round_prefer_ceil")


@aten("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def _linear_resize(n: AtenNode) -> Any:
    return _resized_aten(n, "linear", "align_corners" if n.arg("align_corners") else "half_pixel")


@aten("upsample_bicubic2d")
def _cubic_resize(n: AtenNode) -> Any:
    return _resized_aten(n, "cubic", "align_corners" if n.arg("align_corners") else "half_pixel")
