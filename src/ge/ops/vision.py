"""Vision: sampling at computed places, regions of interest, patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import FLOATS, TensorDesc, numpy_dtype
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.parsers.plugin import Node, Results, Unsupported, plugin

# -- sampling ----------------------------------------------------------------------------------------------------


@register
class GridSample(Operator):
    """x (N, C, space) read at the places a grid (N, positions, axes) names, from -1 to 1, the last axis first."""

    x = Input("T", FLOATS)
    grid = Input("", FLOATS)
    y = Output("T")
    mode = Attr(str, "linear", choices=("linear", "nearest", "cubic"))
    padding_mode = Attr(str, "zeros", choices=("zeros", "border", "reflection"))
    align_corners = Attr(bool, False)
    aicpu = "grid_sample"

    @staticmethod
    def verify(op: NodeView) -> None:
        x, grid = op.inputs[:2]
        assert x is not None and grid is not None
        if x.rank != grid.rank or grid.shape[-1] != x.rank - 2 or grid.shape[0] != x.shape[0]:
            raise fail(op, f"input {x} and grid {grid} do not go together")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        x, grid = op.inputs[:2]
        assert x is not None and grid is not None
        return TensorDesc((*x.shape[:2], *grid.shape[1:-1]), x.dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x, grid = (np.asarray(a, np.float64) for a in arrays[:2])
        sizes = x.shape[2:]
        places = [
            _place(grid[..., len(sizes) - 1 - axis], size, op) for axis, size in enumerate(sizes)
        ]
        return [np.stack([_sampled(x[b], [p[b] for p in places], op) for b in range(x.shape[0])])]


def _place(g: np.ndarray, size: int, op: NodeView) -> np.ndarray:
    """A grid coordinate in pixels."""
    if op.align_corners:
        return (g + 1) / 2 * (size - 1)
    return ((g + 1) * size - 1) / 2


def _folded(i: np.ndarray, size: int, op: NodeView) -> np.ndarray:
    """A pixel coordinate outside the image brought inside, by padding mode."""
    if op.padding_mode == "border":
        return np.clip(i, 0, size - 1)
    low, high = (0.0, size - 1.0) if op.align_corners else (-0.5, size - 0.5)
    span = high - low
    if span == 0:
        return np.zeros_like(i)
    inside = np.mod(i - low, 2 * span)
    return np.clip(np.where(inside > span, 2 * span - inside, inside) + low, 0, size - 1)


def _sampled(x: np.ndarray, places: Sequence[np.ndarray], op: NodeView) -> np.ndarray:
    """One image (C, space) read at places."""
    sizes = x.shape[1:]
    if op.mode != "cubic" and op.padding_mode != "zeros":
        places = [_folded(p, s, op) for p, s in zip(places, sizes, strict=True)]
    taps = [_taps(p, op.mode) for p in places]
    total = np.zeros((x.shape[0], *places[0].shape))
    for choice in np.ndindex(*(len(t) for t in taps)):
        index = [taps[axis][k][0] for axis, k in enumerate(choice)]
        weight = np.prod([np.broadcast_to(taps[axis][k][1], places[0].shape) for axis, k in enumerate(choice)], axis=0)
        total += weight * _pixels(x, index, op)
    return total


def _taps(place: np.ndarray, mode: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The pixels along one axis that a place reads, with weights."""
    if mode == "nearest":
        return [(np.rint(place), np.ones_like(place))]
    first = np.floor(place)
    t = place - first
    if mode == "linear":
        return [(first, 1 - t), (first + 1, t)]
    a = -0.75
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
    far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (t + 1, 2 - t)]
    return [(first - 1, far[0]), (first, near[0]), (first + 1, near[1]), (first + 2, far[1])]


def _pixels(x: np.ndarray, index: Sequence[np.ndarray], op: NodeView) -> np.ndarray:
    inside = np.ones(index[0].shape, bool)
    found = []
    for i, size in zip(index, x.shape[1:], strict=True):
        if op.padding_mode == "zeros":
            inside &= (i >= 0) & (i < size)
            i = np.clip(i, 0, size - 1)
        else:
            i = _folded(i, size, op)
        found.append(np.nan_to_num(i).astype(np.int64))
    return np.where(inside, x[(slice(None), *found)], 0)


@plugin(onnx="GridSample")
def _grid_sample(n: Node) -> Results:
    mode = n.attr("mode", "linear" if n.version >= 20 else "bilinear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if mode == "cubic" and n.desc().rank != 4:
        raise Unsupported("cubic GridSample takes images only", "use linear or nearest for volumes")
    padding, align = n.attr("padding_mode", "zeros"), bool(n.attr("align_corners", 0))
    return n.op("GridSample", n.inputs[0], n.inputs[1], mode=mode, padding_mode=padding, align_corners=align)


# -- regions of interest -----------------------------------------------------------------------------------------


@register
class RoiAlign(Operator):
    """Regions of images, each divided into bins and sampled by interpolation: (R, C, height, width)."""

    x = Input("T", FLOATS)
    rois = Input("T", FLOATS)
    batch_indices = Input("I", frozenset({"int64"}))
    y = Output("T")
    height = Attr(int, 1)
    width = Attr(int, 1)
    sampling_ratio = Attr(int, 0)
    spatial_scale = Attr(float, 1.0)
    mode = Attr(str, "avg", choices=("avg", "max"))
    half_pixel = Attr(bool, True)
    aicpu = "roi_align"

    @staticmethod
    def verify(op: NodeView) -> None:
        x, rois, batch = op.inputs[:3]
        assert x is not None and rois is not None and batch is not None
        if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4 or batch.shape != rois.shape[:1]:
            raise fail(op, f"input {x}, rois {rois} and batch indices {batch} do not go together")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        x, rois = op.inputs[:2]
        assert x is not None and rois is not None
        return TensorDesc((rois.shape[0], x.shape[1], op.height, op.width), x.dtype)

    @staticmethod
    def kernel_attrs(op: NodeView) -> dict[str, Any]:
        mode = "half_pixel" if op.half_pixel else "output_half_pixel"
        return {**Operator.kernel_attrs(op), "coordinate_transformation_mode": mode}

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x, rois = (np.asarray(a, np.float64) for a in arrays[:2])
        batch = np.asarray(arrays[2])
        y = np.zeros((rois.shape[0], x.shape[1], op.height, op.width))
        for r in range(rois.shape[0]):
            y[r] = _aligned_region(x[int(batch[r])], rois[r], op)
        return [y]


def _aligned_region(x: np.ndarray, roi: np.ndarray, op: NodeView) -> np.ndarray:
    offset = 0.5 if op.half_pixel else 0.0
    x1, y1, x2, y2 = roi * op.spatial_scale - offset
    size = [y2 - y1, x2 - x1]
    if not op.half_pixel:
        size = [max(s, 1.0) for s in size]
    bins = [size[0] / op.height, size[1] / op.width]
    samples = [op.sampling_ratio or max(math.ceil(b), 1) for b in bins]
    rows = y1 + (np.arange(op.height * samples[0]) + 0.5) * bins[0] / samples[0]
    columns = x1 + (np.arange(op.width * samples[1]) + 0.5) * bins[1] / samples[1]
    terms = _corner_terms(x, rows, columns)
    shape = (x.shape[0], op.height, samples[0], op.width, samples[1])
    if op.mode == "avg":
        return sum(terms).reshape(shape).mean(axis=(2, 4))
    return np.max(terms, axis=0).reshape(shape).max(axis=(2, 4))


def _corner_terms(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> list[np.ndarray]:
    """The four weighted corners at each row and column; outside the image they are 0."""
    height, width = x.shape[1:]
    inside = ((rows >= -1) & (rows <= height))[:, None] & ((columns >= -1) & (columns <= width))
    r, c = np.maximum(rows, 0), np.maximum(columns, 0)
    r0, c0 = (np.minimum(np.floor(v).astype(int), s - 1) for v, s in ((r, height), (c, width)))
    r1, c1 = np.minimum(r0 + 1, height - 1), np.minimum(c0 + 1, width - 1)
    r, c = np.where(r0 >= height - 1, r0, r), np.where(c0 >= width - 1, c0, c)
    lr, lc = r - r0, c - c0
    corners = [(r0, c0, 1 - lr, 1 - lc), (r0, c1, 1 - lr, lc), (r1, c0, lr, 1 - lc), (r1, c1, lr, lc)]
    return [x[:, a[:, None], b[None, :]] * (u[:, None] * v[None, :]) * inside for a, b, u, v in corners]


@plugin(onnx="RoiAlign")
def _roi_align(n: Node) -> Results:
    default = "half_pixel" if n.version >= 16 else "output_half_pixel"
    return n.op(
        "RoiAlign",
        *n.inputs[:3],
        height=int(n.attr("output_height", 1)),
        width=int(n.attr("output_width", 1)),
        sampling_ratio=int(n.attr("sampling_ratio", 0)),
        spatial_scale=float(n.attr("spatial_scale", 1.0)),
        mode=n.attr("mode", "avg"),
        half_pixel=n.attr("coordinate_transformation_mode", default) == "half_pixel",
    )


# -- patches -----------------------------------------------------------------------------------------------------


@plugin(onnx="Col2Im")
def _col2im(n: Node) -> Results:
    """Columns of patches added up into an image: a scatter with constant places."""
    image, block = n.ints(1, "image_shape"), n.ints(2, "block_shape")
    rank = len(image)
    strides, dilations = n.attr("strides") or [1] * rank, n.attr("dilations") or [1] * rank
    pads = n.attr("pads") or [0] * (2 * rank)
    full = [d + pads[i] + pads[rank + i] for i, d in enumerate(image)]
    counts = [
        (f - (b - 1) * h - 1) // s + 1 for f, b, h, s in zip(full, block, dilations, strides, strict=True)
    ]
    batch, rows, columns = n.desc().shape
    channels = rows // math.prod(block)
    place = np.zeros((*block, *counts), np.int64)
    for axis in range(rank):
        where = np.arange(block[axis])[:, None] * dilations[axis] + np.arange(counts[axis]) * strides[axis]
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = block[axis], counts[axis]
        place = place * full[axis] + where.reshape(shape)
    flat = n.builder.constant(place.reshape(1, -1))
    lanes = batch * channels
    updates = n.op("Reshape", n.inputs[0], shape=[lanes, place.size])
    zero = n.builder.constant(np.zeros((), numpy_dtype(n.desc().dtype)))
    canvas = n.op("BroadcastTo", zero, shape=[lanes, math.prod(full)])
    indices = n.op("BroadcastTo", flat, shape=[lanes, place.size])
    y = n.op("ScatterElements", canvas, indices, updates, axis=1, reduction="add")
    y = n.op("Reshape", y, shape=[batch, channels, *full])
    starts = [0, 0, *pads[:rank]]
    ends = [batch, channels, *(pads[i] + d for i, d in enumerate(image))]
    return y if full == image else n.op("Slice", y, starts=starts, ends=ends)


@plugin(onnx="DeformConv")
def _deform_conv(n: Node) -> Results:
    """Each kernel position reads the image at a place of its own: samples, then a matrix product."""
    x, weight, offset = n.inputs[:3]
    shape, kernel = n.desc(0).shape, n.desc(1).shape[2:]
    if len(shape) != 4:
        raise Unsupported(f"DeformConv takes images, got {n.desc(0)}")
    groups, lanes = int(n.attr("group", 1)), int(n.attr("offset_group", 1))
    strides, dilations = n.attr("strides") or [1, 1], n.attr("dilations") or [1, 1]
    pads = n.attr("pads") or [0] * 4
    outputs = n.desc(2).shape[2:]
    batch, channels = shape[:2]
    taps, area = math.prod(kernel), math.prod(outputs)
    offsets = n.op("Reshape", offset, shape=[batch * lanes, taps, 2, area])
    real = numpy_dtype(n.desc().dtype)
    places = []
    for axis in range(2):
        cells = np.indices(outputs)[axis].reshape(1, area) * strides[axis] - pads[axis]
        base = cells + np.indices(kernel)[axis].reshape(taps, 1) * dilations[axis]
        moved = n.op("Gather", offsets, np.asarray(axis), axis=2)
        pixel = n.op("Add", moved, base.astype(real))
        size = shape[2 + axis]
        places.append(n.op("Sub", n.op("Mul", pixel, 2.0 / max(size - 1, 1)), 1.0))
    columns = [n.op("Reshape", p, shape=[batch * lanes, taps, area, 1]) for p in reversed(places)]
    grid = n.op("Concat", *columns, axis=3)
    images = n.op("Reshape", x, shape=[batch * lanes, channels // lanes, *shape[2:]])
    sampled = n.op("GridSample", images, grid, mode="linear", padding_mode="zeros", align_corners=True)
    if n.input(4) is not None:
        mask = n.op("Reshape", n.inputs[4], shape=[batch * lanes, 1, taps, area])
        sampled = n.op("Mul", sampled, mask)
    outs = n.desc(1).shape[0]
    rows = n.op("Reshape", sampled, shape=[batch, groups, channels // groups * taps, area])
    kernels = n.op("Reshape", weight, shape=[groups, outs // groups, channels // groups * taps])
    y = n.op("Reshape", n.op("MatMul", kernels, rows), shape=[batch, outs, *outputs])
    if n.input(3) is None:
        return y
    return n.op("Add", y, n.op("Reshape", n.inputs[3], shape=[outs, 1, 1]))
