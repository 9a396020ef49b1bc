"""Vision: sampling at computed positions, regions of interest, patches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import FLOATS, NUMBERS, TensorDesc, numpy_dtype
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.dataflow import Dataflow, Part, Sliced
from ge.ops.math.checks import failing_where, indices_of
from ge.ops.plugins import Node, Results, Unsupported, plugin

_FAR = 1e9  # from here on the reflection of a coordinate is noise

# -- sampling -----------------------------------------------------------------------------------------------


@register
class GridSample(Operator):
    """x (N, C, space) read where a grid (N, positions, axes) says, from -1 to 1, the last axis first."""

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
        places = [_place(grid[..., len(sizes) - 1 - axis], size, op) for axis, size in enumerate(sizes)]
        return [np.stack([_sampled(x[b], [p[b] for p in places], op) for b in range(x.shape[0])])]


def _place(g: np.ndarray, size: int, op: NodeView) -> np.ndarray:
    """A grid coordinate in pixels."""
    if op.align_corners:
        return (g + 1) / 2 * (size - 1)
    return ((g + 1) * size - 1) / 2


def _folded(i: np.ndarray, size: int, op: NodeView) -> np.ndarray:
    """Map a pixel coordinate outside the image inside, by padding mode."""
    if op.padding_mode == "border":
        return np.nan_to_num(np.clip(i, 0, size - 1))
    low, high = (0.0, size - 1.0) if op.align_corners else (-0.5, size - 0.5)
    span = high - low
    if span == 0:
        return np.zeros_like(i)
    inside = np.mod(np.where(np.abs(i) <= _FAR, i, 0) - low, 2 * span)
    return np.clip(np.where(inside > span, 2 * span - inside, inside) + low, 0, size - 1)


def _sampled(x: np.ndarray, places: Sequence[np.ndarray], op: NodeView) -> np.ndarray:
    """Sample one image (C, space) at positions."""
    sizes = x.shape[1:]
    if op.mode != "cubic" and op.padding_mode != "zeros":
        places = [_folded(p, s, op) for p, s in zip(places, sizes, strict=True)]
    taps = [_taps(p, op.mode) for p in places]
    total = np.zeros((x.shape[0], *places[0].shape))
    for choice in np.ndindex(*(len(t) for t in taps)):
        index = [taps[axis][k][0] for axis, k in enumerate(choice)]
        weight = np.prod(
            [np.broadcast_to(taps[axis][k][1], places[0].shape) for axis, k in enumerate(choice)], axis=0
        )
        total += weight * _pixels(x, index, op)
    return total


def _taps(place: np.ndarray, mode: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The pixels along one axis that a position reads, with weights."""
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
    grid: Any = n.inputs[1]
    if (mode, padding, align) == ("nearest", "reflection", False):
        grid = _rounded_places(n, grid)
    return n.op("GridSample", n.inputs[0], grid, mode=mode, padding_mode=padding, align_corners=align)


@plugin(onnx="AffineGrid")
def _affine_grid(n: Node) -> Results:
    """The places of a picture's or a volume's elements, moved by a matrix for each of a batch.

    Where the outer elements lie at -1 and 1, a single one lies at 1, as in ONNX Runtime; the specification divides by
    zero.
    """
    sizes, align = n.ints(1, "size"), bool(n.attr("align_corners", 0))
    theta, dtype = n.inputs[0], n.desc().dtype
    space = sizes[2:]
    if len(space) not in (2, 3) or n.desc().shape != (sizes[0], len(space), len(space) + 1):
        raise Unsupported(f"a size of {sizes} with matrices of {n.desc()}", "check the model")
    ends = [1.0 if align else 1 - 1 / max(k, 1) for k in space]
    axes = [np.linspace(end if k == 1 else -end, end, k) for end, k in zip(ends, space, strict=True)]
    places = [*reversed(np.meshgrid(*axes, indexing="ij")), np.ones(space)]
    wide = "float64" if dtype == "float64" else "float32"
    base = np.stack(places, -1).reshape(1, -1, len(places)).astype(wide)
    base = np.broadcast_to(base, (sizes[0], *base.shape[1:]))
    wide_theta = theta if wide == dtype else n.op("Cast", theta, to=wide)
    grid = n.op("MatMul", n.builder.constant(np.ascontiguousarray(base)), wide_theta, transpose_b=True)
    grid = n.op("Reshape", grid, shape=[sizes[0], *space, len(space)])
    return grid if wide == dtype else n.op("Cast", grid, to=dtype)


def _rounded_places(n: Node, grid: Any) -> Any:
    """The grid of the nearest pixels. ONNX rounds before it reflects, PyTorch afterwards: ties differ."""
    sizes = n.builder.constant(np.array(n.desc().shape[:1:-1], numpy_dtype(n.desc(1).dtype)))
    place = n.op("Mul", n.op("Sub", n.op("Mul", n.op("Add", grid, 1.0), sizes), 1.0), 0.5)
    return n.op("Sub", n.op("Div", n.op("Add", n.op("Mul", n.op("Round", place), 2.0), 1.0), sizes), 1.0)


# -- regions of interest -----------------------------------------------------------------------------------


class OfRegions(Dataflow):
    """Each row of the result is of a row of the other inputs than the first, which is read whole."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        return Sliced(dict.fromkeys(range(1, len(op.inputs)), part)) if part.axis == 0 else None


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
    dataflow = OfRegions()

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
        return np.sum(terms, axis=0).reshape(shape).mean(axis=(2, 4))
    return np.max(terms, axis=0).reshape(shape).max(axis=(2, 4))


def _corner_terms(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> list[np.ndarray]:
    """The four weighted corners at each row and column; zero outside the image."""
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
    images = indices_of(n, n.inputs[2], n.desc().shape[:1], "batch_indices", from_end=False)
    return n.op(
        "RoiAlign",
        *n.inputs[:2],
        images,
        height=int(n.attr("output_height", 1)),
        width=int(n.attr("output_width", 1)),
        sampling_ratio=int(n.attr("sampling_ratio", 0)),
        spatial_scale=float(n.attr("spatial_scale", 1.0)),
        mode=n.attr("mode", "avg"),
        half_pixel=n.attr("coordinate_transformation_mode", default) == "half_pixel",
    )


@register
class MaxRoiPool(Operator):
    """Regions of images (rows of batch, x1, y1, x2, y2 in whole pixels), the maximum of each bin."""

    x = Input("T", FLOATS)
    rois = Input("T", FLOATS)
    y = Output("T")
    pooled = Attr(list)
    spatial_scale = Attr(float, 1.0)
    aicpu = "max_roi_pool"
    dataflow = OfRegions()

    @staticmethod
    def verify(op: NodeView) -> None:
        x, rois = op.inputs[:2]
        assert x is not None and rois is not None
        if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 5 or len(op.pooled) != 2:
            raise fail(op, f"input {x}, rois {rois} and bins {list(op.pooled)} do not go together")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        x, rois = op.inputs[:2]
        assert x is not None and rois is not None
        return TensorDesc((rois.shape[0], x.shape[1], *op.pooled), x.dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x, rois = np.asarray(arrays[0]), np.asarray(arrays[1], np.float64)
        y = np.zeros(op.outputs[0].shape, x.dtype)
        for r, (batch, *corners) in enumerate(rois):
            x1, y1, x2, y2 = (math.floor(c * op.spatial_scale + 0.5) for c in corners)
            rows = _bins(y1, max(y2 - y1 + 1, 1), op.pooled[0], x.shape[2])
            columns = _bins(x1, max(x2 - x1 + 1, 1), op.pooled[1], x.shape[3])
            for (i, (a, b)), (j, (c, d)) in itertools.product(enumerate(rows), enumerate(columns)):
                if b > a and d > c:
                    y[r, :, i, j] = x[int(batch), :, a:b, c:d].max(axis=(1, 2))
        return [y]


def _bins(start: int, size: int, count: int, extent: int) -> list[tuple[int, int]]:
    """The pixels of each of `count` bins of an interval, inside an image."""
    edges = [(math.floor(i * size / count), math.ceil((i + 1) * size / count)) for i in range(count)]
    return [(min(max(a + start, 0), extent), min(max(b + start, 0), extent)) for a, b in edges]


@plugin(onnx="MaxRoiPool")
def _max_roi_pool(n: Node) -> Results:
    pooled, scale = list(n.attr("pooled_shape")), float(n.attr("spatial_scale", 1.0))
    return n.op("MaxRoiPool", n.inputs[0], n.inputs[1], pooled=pooled, spatial_scale=scale)


# -- patches -----------------------------------------------------------------------------------------------


@plugin(onnx="Col2Im")
def _col2im(n: Node) -> Results:
    """Columns of patches summed into an image: a scatter with constant positions."""
    image, block = n.ints(1, "image_shape"), n.ints(2, "block_shape")
    rank = len(image)
    strides, dilations = n.attr("strides") or [1] * rank, n.attr("dilations") or [1] * rank
    pads = n.attr("pads") or [0] * (2 * rank)
    full = [d + pads[i] + pads[rank + i] for i, d in enumerate(image)]
    counts = [
        (f - (b - 1) * h - 1) // s + 1 for f, b, h, s in zip(full, block, dilations, strides, strict=True)
    ]
    batch, rows, _ = n.desc().shape
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
    """Each kernel position samples the image at its own offset: samples, then a matrix product."""
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
        pixel = n.op("Minimum", n.op("Maximum", pixel, -1.0), float(size))  # infinity reads nothing
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


# -- TensorFlow --------------------------------------------------------------------------------------------


@register
class CropAndResize(Operator):
    """Boxes (R, 4) cut out of images (N, H, W, C) and resized; owners (R) tell which image each is from.

    Boxes are y1, x1, y2, x2, from 0 to 1; what is outside of the image has the extrapolation value.
    """

    x = Input("", NUMBERS)
    boxes = Input("", frozenset({"float32"}))
    owners = Input("", frozenset({"int32"}))
    y = Output()
    height = Attr(int)
    width = Attr(int)
    method = Attr(str, "bilinear", choices=("bilinear", "nearest"))
    extrapolation_value = Attr(float, 0.0)
    aicpu = "crop_and_resize"
    dataflow = OfRegions()

    @staticmethod
    def verify(op: NodeView) -> None:
        x, boxes, owners = op.inputs[:3]
        assert x is not None and boxes is not None and owners is not None
        if x.rank != 4 or boxes.rank != 2 or boxes.shape[1] != 4 or owners.shape != boxes.shape[:1]:
            raise fail(op, f"images {x}, boxes {boxes} and owners {owners} do not go together")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        x, boxes = op.inputs[:2]
        assert x is not None and boxes is not None
        return TensorDesc((boxes.shape[0], op.height, op.width, x.shape[3]), "float32")

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        x, boxes, owners = (np.asarray(a) for a in arrays[:3])
        y = np.full((len(boxes), op.height, op.width, x.shape[3]), op.extrapolation_value, np.float32)
        for r, (box, owner) in enumerate(zip(boxes, owners, strict=True)):
            rows = _crop_places(box[0], box[2], x.shape[1], op.height)
            columns = _crop_places(box[1], box[3], x.shape[2], op.width)
            inside = np.ix_(
                *((p >= 0) & (p <= s - 1) for p, s in ((rows, x.shape[1]), (columns, x.shape[2])))
            )
            y[r][inside] = _cropped(x[int(owner)].astype(np.float32), rows, columns, op.method)[inside]
        return [y]


def _crop_places(start: float, end: float, size: int, out: int) -> np.ndarray:
    last = np.float32(size - 1)
    if out == 1:
        return np.asarray([np.float32(0.5) * (start + end) * last], np.float32)
    step = (end - start) * last / np.float32(out - 1)
    return np.asarray(start * last + np.arange(out, dtype=np.float32) * step, np.float32)


def _cropped(x: np.ndarray, rows: np.ndarray, columns: np.ndarray, method: str) -> np.ndarray:
    rows, columns = rows.clip(0, x.shape[0] - 1), columns.clip(0, x.shape[1] - 1)
    if method == "nearest":
        r, c = (np.floor(v + np.float32(0.5)).astype(int) for v in (rows, columns))
        return x[r][:, c]
    r0, c0, r1, c1 = (f(v).astype(int) for f in (np.floor, np.ceil) for v in (rows, columns))
    dr, dc = (rows - r0)[:, None, None], (columns - c0)[None, :, None]
    top = x[r0][:, c0] + (x[r0][:, c1] - x[r0][:, c0]) * dc
    low = x[r1][:, c0] + (x[r1][:, c1] - x[r1][:, c0]) * dc
    return top + (low - top) * dr


@plugin(tensorflow="CropAndResize")
def _crop_and_resize(n: Node) -> Results:
    height, width = n.ints(3, "the crop size")
    text = "Boxes contains at least one element that is not finite"
    boxes = failing_where(n, n.inputs[1], n.op("Not", n.op("IsFinite", n.inputs[1])), text)
    return n.op(
        "CropAndResize",
        n.inputs[0],
        boxes,
        n.inputs[2],
        height=height,
        width=width,
        method=str(n.attr("method", "bilinear")),
        extrapolation_value=float(n.attr("extrapolation_value", 0.0)),
    )


@plugin(tensorflow="Dilation2D")
def _dilation(n: Node) -> Results:
    """The maximum sum of a pixel and its weight in each window."""
    if n.desc().dtype not in FLOATS:
        raise Unsupported(f"Dilation2D of {n.desc().dtype}", "use a float type")
    batch, height, width, channels = n.desc().shape
    kernel, strides, rates = n.desc(1).shape[:2], list(n.attr("strides"))[1:3], list(n.attr("rates"))[1:3]
    low, high, sizes = [0, 0], [0, 0], [0, 0]
    for i, size in enumerate((height, width)):
        reach = (kernel[i] - 1) * rates[i] + 1
        if n.attr("padding") == "SAME":
            total = max((-(-size // strides[i]) - 1) * strides[i] + reach - size, 0)
            low[i], high[i] = total // 2, total - total // 2
        sizes[i] = (size + low[i] + high[i] - reach) // strides[i] + 1
    x = n.op("Pad", n.inputs[0], low=[0, *low, 0], high=[0, *high, 0], value=-math.inf)
    best: Any = None
    for i, j in np.ndindex(*kernel):
        starts = [0, i * rates[0], j * rates[1], 0]
        ends = [
            batch,
            *(a + (c - 1) * s + 1 for a, c, s in zip(starts[1:3], sizes, strides, strict=True)),
            channels,
        ]
        piece = n.op("Slice", x, starts=starts, ends=ends, steps=[1, *strides, 1])
        weight = n.op("Slice", n.inputs[1], starts=[i, j, 0], ends=[i + 1, j + 1, channels])
        added = n.op("Add", piece, n.op("Reshape", weight, shape=[channels]))
        best = added if best is None else n.op("Maximum", best, added)
    return best


# -- TensorFlow: colours -----------------------------------------------------------------------------------


def _channels(n: Node, x: Any) -> list[Any]:
    return list(n.builder.ops("Split", [x], axis=-1, sizes=[1, 1, 1]))


def _to_hsv(n: Node, x: Any) -> list[Any]:
    """Hue, saturation and value, from 0 to 1."""
    r, g, b = _channels(n, x)
    value = n.op("Maximum", r, n.op("Maximum", g, b))
    spread = n.op("Sub", value, n.op("Minimum", r, n.op("Minimum", g, b)))
    saturation = n.op("Select", n.op("Greater", value, 0.0), n.op("Div", spread, value), 0.0)
    norm = n.op("Div", n.op("Add", n.op("Mul", spread, 0.0), 1.0 / 6), spread)

    def sector(first: Any, second: Any, offset: float) -> Any:
        return n.op("Add", n.op("Mul", norm, n.op("Sub", first, second)), offset)

    blue_or_green = n.op("Select", n.op("Equal", g, value), sector(b, r, 2 / 6), sector(r, g, 4 / 6))
    hue = n.op("Select", n.op("Equal", r, value), sector(g, b, 0.0), blue_or_green)
    hue = n.op("Select", n.op("LessEqual", spread, 0.0), 0.0, hue)
    return [n.op("Select", n.op("Less", hue, 0.0), n.op("Add", hue, 1.0), hue), saturation, value]


def _to_rgb(n: Node, hue: Any, saturation: Any, value: Any) -> Any:
    sixths = n.op("Mul", hue, 6.0)

    def away(centre: float) -> Any:
        return n.op("Abs", n.op("Sub", sixths, centre))

    shares = [n.op("Sub", away(3.0), 1.0), n.op("Sub", 2.0, away(2.0)), n.op("Sub", 2.0, away(4.0))]
    rest = n.op("Sub", 1.0, saturation)
    parts = [
        n.op("Mul", n.op("Add", rest, n.op("Mul", saturation, n.op("Clip", s, min=0.0, max=1.0))), value)
        for s in shares
    ]
    return n.op("Concat", *parts, axis=-1)


@plugin(tensorflow="RGBToHSV")
def _rgb_to_hsv(n: Node) -> Results:
    return n.op("Concat", *_to_hsv(n, n.inputs[0]), axis=-1)


@plugin(tensorflow="HSVToRGB")
def _hsv_to_rgb(n: Node) -> Results:
    return _to_rgb(n, *_channels(n, n.inputs[0]))


@plugin(tensorflow="AdjustSaturation")
def _adjust_saturation(n: Node) -> Results:
    hue, saturation, value = _to_hsv(n, n.inputs[0])
    return _to_rgb(n, hue, n.op("Clip", n.op("Mul", saturation, n.inputs[1]), min=0.0, max=1.0), value)


@plugin(tensorflow="AdjustHue")
def _adjust_hue(n: Node) -> Results:
    hue, saturation, value = _to_hsv(n, n.inputs[0])
    turned = n.op("Add", hue, n.inputs[1])
    return _to_rgb(n, n.op("Sub", turned, n.op("Floor", turned)), saturation, value)


@plugin(tensorflow="AdjustContrastv2")
def _adjust_contrast(n: Node) -> Results:
    """Away from each channel's mean over the image."""
    rank = n.desc().rank
    mean = n.op("ReduceMean", n.inputs[0], axes=[rank - 3, rank - 2], keepdims=True)
    return n.op("Add", n.op("Mul", n.op("Sub", n.inputs[0], mean), n.inputs[1]), mean)


# -- ATen ------------------------------------------------------------------------------------------------


@aten("grid_sampler_2d", "grid_sampler_3d")
def _grid_sample_aten(n: AtenNode) -> Any:
    x = n.arg("input")
    if desc_of(x).dtype not in ("float32", "float64") or not desc_of(x).size:
        raise Unsupported(f"samples of {desc_of(x)}")
    mode = ("linear", "nearest", "cubic")[int(n.arg("interpolation_mode", 0))]
    padding = ("zeros", "border", "reflection")[int(n.arg("padding_mode", 0))]
    return n.op("GridSample", x, n.arg("grid"), mode=mode, padding_mode=padding,
                align_corners=bool(n.arg("align_corners")))  # fmt: skip
