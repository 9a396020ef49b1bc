"""MindSpore: shapes, slices, gathers, scatters, creation and tuples of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.types import numpy_dtype
from ge.ir.values import desc_of
from ge.ops.math.checks import in_range
from ge.ops.plugins import Unsupported
from ge.parsers.mindir.node import MsNode, as_aten, primitive

as_aten(
    {
        "BroadcastTo": ("expand", "self size!"),
        "BroadcastToView": ("expand", "self size!"),
        "Diagonal": ("diagonal", "self offset!=0 dim1!=0 dim2!=1"),
        "DiagonalView": ("diagonal", "self offset!=0 dim1!=0 dim2!=1"),
        "ExpandAs": ("expand_as", "self other"),
        "FlattenExt": ("flatten", "self start_dim!=0 end_dim!=-1"),
        "Index": ("index.Tensor", "self indices"),
        "IndexAddExt": ("index_add", "self dim! index source alpha!=1"),
        "IndexSelect": ("index_select", "self dim! index"),
        "MaskedFillScalar": ("masked_fill", "self mask value"),
        "MaskedScatter": ("masked_scatter.default", "self mask source"),
        "Narrow": ("narrow", "self dim! start! length!"),
        "NarrowView": ("narrow", "self dim! start! length!"),
        "PixelShuffle": ("pixel_shuffle", "self upscale_factor!"),
        "ReflectionPad1D": ("reflection_pad1d", "self padding!"),
        "ReflectionPad2D": ("reflection_pad2d", "self padding!"),
        "ReflectionPad3D": ("reflection_pad3d", "self padding!"),
        "ReplicationPad1D": ("replication_pad1d", "self padding!"),
        "ReplicationPad2D": ("replication_pad2d", "self padding!"),
        "ReplicationPad3D": ("replication_pad3d", "self padding!"),
        "ConstantPadND": ("constant_pad_nd", "self pad! value!=0.0"),
        "Repeat": ("repeat", "self repeats!"),
        "ScatterAddExt": ("scatter_add", "self dim! index src"),
        "SelectExtView": ("select.int", "self dim! index!"),
        "SliceExt": ("slice.Tensor", "self dim! start! end! step!"),
        "SliceExtView": ("slice.Tensor", "self dim! start! end! step!"),
        "SplitTensor": ("split", "self split_size! dim!=0"),
        "SplitTensorView": ("split", "self split_size! dim!=0"),
        "SplitWithSize": ("split_with_sizes", "self split_sizes! dim!=0"),
        "SplitWithSizeView": ("split_with_sizes", "self split_sizes! dim!=0"),
        "TExt": ("t", "self"),
        "Take": ("take", "self index"),
        "TransposeExtView": ("transpose.int", "self dim0! dim1!"),
        "UnstackExtView": ("unbind", "self dim!=0"),
    }
)


@primitive("Reshape View ViewAs Flatten Squeeze ExpandDims ExpandDimsView Unsqueeze", "input")
def _reshape(n: MsNode) -> Any:
    """The shape is the one MindSpore inferred."""
    return n.shaped(n.tensor("input"), n.out().shape)


@primitive("Transpose TransposeView", "input perm")
def _transpose(n: MsNode) -> Any:
    x = n.tensor("input")
    rank = desc_of(x).rank
    return n.turned(x, [p % rank for p in n.integers("perm")])


@primitive("Cast ToDtype", "input dtype")
def _cast(n: MsNode) -> Any:
    return n.cast(n.arg("input"), n.out().dtype)


@primitive("Tile", "input dims")
def _tile(n: MsNode) -> Any:
    x = n.tensor("input")
    repeats = n.integers("dims")
    shape = list(desc_of(x).shape)
    shape = [1] * (len(repeats) - len(shape)) + shape
    repeats = [1] * (len(shape) - len(repeats)) + repeats
    x = n.shaped(x, shape)
    if all(s == 1 or r == 1 for s, r in zip(shape, repeats, strict=True)):
        return n.spread(x, [s * r for s, r in zip(shape, repeats, strict=True)])
    return n.op("Tile", x, repeats=repeats)


@primitive("Concat", "tensors axis=0")
def _concat(n: MsNode) -> Any:
    *values, axis = _spread_tensors(n, "axis", 0)
    return n.op("Concat", *values, axis=int(axis) % desc_of(values[0]).rank) if len(values) > 1 else values[0]


def _spread_tensors(n: MsNode, name: str, default: int) -> list[Any]:
    """Tensors of a list argument, or of arguments of their own, then a setting."""
    first = n.parser.resolved(n.arguments[0])
    if isinstance(first, tuple):
        return [*n.tensors("tensors"), n.setting(name, default)]
    values = [n.parser.resolved(a) for a in n.arguments]
    tensors = [v for v in values if isinstance(v, ir.Value)]
    numbers = [v for v in values if isinstance(v, int)]
    return [*tensors, numbers[0] if numbers else n.setting(name, default)]


@primitive("Stack StackExt", "tensors axis=0 dim=0")
def _stack(n: MsNode) -> Any:
    values = n.tensors("tensors")
    rank = desc_of(values[0]).rank + 1
    axis = int(n.setting("axis", 0)) or int(n.setting("dim", 0))
    axis %= rank
    shape = list(desc_of(values[0]).shape)
    rows = [n.shaped(v, [*shape[:axis], 1, *shape[axis:]]) for v in values]
    return n.op("Concat", *rows, axis=axis) if len(rows) > 1 else rows[0]


@primitive("Unstack", "x axis=0")
def _unstack(n: MsNode) -> Any:
    x = n.tensor("x")
    axis = int(n.setting("axis", 0)) % desc_of(x).rank
    count = desc_of(x).shape[axis]
    parts = n.builder.ops("Split", [x], axis=axis, sizes=[1] * count)
    return tuple(n.shaped(p, n.out(0).shape) for p in parts)


@primitive("Split", "x axis=0 output_num=1")
def _split(n: MsNode) -> Any:
    x, count = n.tensor("x"), int(n.setting("output_num", 1))
    axis = int(n.setting("axis", 0)) % desc_of(x).rank
    return tuple(n.builder.ops("Split", [x], axis=axis, sizes=[desc_of(x).shape[axis] // count] * count))


@primitive("Chunk ChunkView", "x chunks dim=0")
def _chunk(n: MsNode) -> Any:
    x = n.tensor("x")
    axis = int(n.setting("dim", 0)) % desc_of(x).rank
    sizes = [d.shape[axis] for d in n.results if d is not None]
    return tuple(n.builder.ops("Split", [x], axis=axis, sizes=sizes))


def _window(n: MsNode, shape: list[int]) -> tuple[list[slice], list[int]]:
    """The slices of a strided slice with its masks, and the axes that it drops."""
    begin, end, strides = n.integers("begin"), n.integers("end"), n.integers("strides")
    masks = {k: int(n.setting(k, 0) or 0) for k in ("begin_mask", "end_mask", "shrink_axis_mask")}
    if int(n.setting("ellipsis_mask", 0) or 0) or int(n.setting("new_axis_mask", 0) or 0):
        raise Unsupported("a slice with an ellipsis or a new axis")
    found, dropped = [], []
    for axis, (low, high, step) in enumerate(zip(begin, end, strides, strict=True)):
        if masks["shrink_axis_mask"] >> axis & 1:
            low = low % shape[axis]
            found.append(slice(low, low + 1, 1))
            dropped.append(axis)
            continue
        first = None if masks["begin_mask"] >> axis & 1 else low
        last = None if masks["end_mask"] >> axis & 1 else high
        found.append(slice(first, last, step))
    return found, dropped


_SLICE = "input begin end strides begin_mask=0 end_mask=0 ellipsis_mask=0 new_axis_mask=0 shrink_axis_mask=0"


@primitive("StridedSlice", _SLICE)
def _strided_slice(n: MsNode) -> Any:
    x = n.tensor("input")
    shape = list(desc_of(x).shape)
    slices, _ = _window(n, shape)
    return n.shaped(_sliced(n, x, slices), n.out().shape)


def _sliced(n: MsNode, x: Any, slices: list[slice]) -> Any:
    shape = list(desc_of(x).shape)
    ranges = [range(s)[w] for s, w in zip(shape, slices, strict=False)]
    ranges += [range(s) for s in shape[len(ranges) :]]
    if any(r.step < 0 and len(r) for r in ranges):
        for axis, r in enumerate(ranges):
            x = n.op("Gather", x, np.asarray(list(r), np.int64), axis=axis)
        return x
    starts = [r.start if len(r) else 0 for r in ranges]
    ends = [(r[-1] + 1) if len(r) else 0 for r in ranges]
    return n.op("Slice", x, starts=starts, ends=ends, steps=[max(r.step, 1) for r in ranges])


@primitive(
    "StridedSliceGrad",
    "dout shapex begin end strides begin_mask=0 end_mask=0 ellipsis_mask=0 "
    "new_axis_mask=0 shrink_axis_mask=0",
)
def _strided_slice_grad(n: MsNode) -> Any:
    """The gradient where the slice was, zeros elsewhere."""
    g, out = n.tensor("dout"), n.out()
    slices, _ = _window(n, list(out.shape))
    ranges = [range(s)[w] for s, w in zip(out.shape, slices, strict=False)]
    ranges += [range(s) for s in out.shape[len(ranges) :]]
    g = n.shaped(g, [len(r) for r in ranges])
    if all(r.step == 1 for r in ranges):
        low = [r.start for r in ranges]
        high = [s - r.stop for s, r in zip(out.shape, ranges, strict=True)]
        return n.op("Pad", g, low=low, high=high)
    places = np.arange(out.size).reshape(out.shape)[tuple(slices)].reshape(-1, 1)
    zeros = n.builder.constant(np.zeros((out.size,), numpy_dtype(out.dtype)))
    flat = n.op("ScatterNd", zeros, places.astype(np.int64), n.shaped(g, [len(places)]), reduction="add")
    return n.shaped(flat, out.shape)


@primitive("Slice", "input begin size")
def _slice(n: MsNode) -> Any:
    x, begin, size = n.tensor("input"), n.integers("begin"), n.integers("size")
    shape = desc_of(x).shape
    ends = [d if s == -1 else b + s for b, s, d in zip(begin, size, shape, strict=True)]
    return n.op("Slice", x, starts=begin, ends=ends)


@primitive("SliceGrad", "dout x begin size")
def _slice_grad(n: MsNode) -> Any:
    g, begin = n.tensor("dout"), n.integers("begin")
    high = [s - b - d for s, b, d in zip(n.out().shape, begin, desc_of(g).shape, strict=True)]
    return n.op("Pad", g, low=begin, high=high)


@primitive("Pad", "x paddings")
def _pad(n: MsNode) -> Any:
    flat = [int(v) for pair in n.arg("paddings") for v in pair]
    return n.op("Pad", n.tensor("x"), low=flat[::2], high=flat[1::2])


@primitive("PadV3", "x paddings constant_values=0 mode='constant' paddings_contiguous=True")
def _pad_v3(n: MsNode) -> Any:
    """Pairs from the last axis on, as in PyTorch."""
    x, flat = n.tensor("x"), n.integers("paddings")
    if str(n.setting("mode", "constant")) != "constant" or not n.setting("paddings_contiguous", True):
        raise Unsupported(f"padding in mode {n.setting('mode')}")
    rank = desc_of(x).rank
    low, high = [0] * rank, [0] * rank
    for i in range(len(flat) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = flat[2 * i], flat[2 * i + 1]
    if min(*low, *high) < 0:  # the gradient of a border: elements are cut off
        shape = desc_of(x).shape
        starts = [max(-a, 0) for a in low]
        ends = [size - max(-b, 0) for size, b in zip(shape, high, strict=True)]
        x = n.op("Slice", x, starts=starts, ends=ends)
    low, high = ([max(v, 0) for v in side] for side in (low, high))
    return n.op("Pad", x, low=low, high=high, value=float(n.setting("constant_values", 0)))


@primitive("MirrorPad", "x paddings mode='REFLECT'")
def _mirror_pad(n: MsNode) -> Any:
    if str(n.setting("mode")) != "REFLECT":
        raise Unsupported("a symmetric border")
    pairs = n.integers("paddings")
    return n.op("Pad", n.tensor("x"), low=pairs[::2], high=pairs[1::2], mode="reflect")


@primitive("ReverseV2", "input axis")
def _reverse(n: MsNode) -> Any:
    x = n.tensor("input")
    return n.op("Reverse", x, axes=[a % desc_of(x).rank for a in n.integers("axis")])


@primitive("Select SelectV2", "condition input other")
def _select(n: MsNode) -> Any:
    out = n.out()
    condition = n.cast(n.arg("condition"), "bool")
    x, y = (n.spread(n.cast(n.arg(k), out.dtype), out.shape) for k in ("input", "other"))
    return n.op("Select", n.spread(condition, out.shape), x, y)


@primitive("MaskedFill", "input mask value")
def _masked_fill(n: MsNode) -> Any:
    out = n.out()
    x = n.spread(n.tensor("input"), out.shape)
    return n.op(
        "Select",
        n.spread(n.tensor("mask"), out.shape),
        n.spread(n.cast(n.arg("value"), out.dtype), out.shape),
        x,
    )


# -- gathers and scatters ----------------------------------------------------------------------------------------


@primitive("Gather SparseGatherV2", "params indices axis=0 batch_dims=0")
def _gather(n: MsNode) -> Any:
    x, places = n.tensor("params"), n.tensor("indices")
    axis = int(n.setting("axis", 0)) % desc_of(x).rank
    batch = int(n.setting("batch_dims", 0))
    places = in_range(n.builder, places, desc_of(x).shape[axis : axis + 1])
    return n.op("Gather", x, places, axis=axis, batch_dims=batch)


@primitive("Embedding", "input weight padding_idx=None max_norm=None norm_type=2.0 scale_grad_by_freq=False")
def _embedding(n: MsNode) -> Any:
    if n.setting("max_norm") is not None:
        raise Unsupported("an embedding with max_norm")
    table = n.tensor("weight")
    places = in_range(n.builder, n.tensor("input"), desc_of(table).shape[:1])
    return n.op("Gather", table, places, axis=0)


@primitive("EmbeddingLookup", "params indices offset=0")
def _embedding_lookup(n: MsNode) -> Any:
    if int(n.setting("offset", 0)):
        raise Unsupported("an offset of the table")
    table = n.tensor("params")
    return n.op("Gather", table, in_range(n.builder, n.tensor("indices"), desc_of(table).shape[:1]), axis=0)


@primitive("GatherD GatherDWithAxis", "x dim index")
def _gather_d(n: MsNode) -> Any:
    x = n.tensor("x")
    axis = int(n.setting("dim")) % desc_of(x).rank
    places = in_range(n.builder, n.tensor("index"), desc_of(x).shape[axis : axis + 1])
    return n.op("GatherElements", x, places, axis=axis)


@primitive("GatherDGradV2", "x dim index dout")
def _gather_d_grad(n: MsNode) -> Any:
    axis = int(n.setting("dim")) % n.out().rank
    zeros = n.filled(0, n.out())
    return n.op("ScatterElements", zeros, n.tensor("index"), n.tensor("dout"), axis=axis, reduction="add")


@primitive("GatherNd GatherNdExt", "input indices")
def _gather_nd(n: MsNode) -> Any:
    x, places = n.tensor("input"), n.tensor("indices")
    places = in_range(n.builder, places, desc_of(x).shape[: desc_of(places).shape[-1]])
    return n.op("GatherNd", x, places)


@primitive("ScatterNd", "indices updates shape")
def _scatter_nd(n: MsNode) -> Any:
    zeros = n.filled(0, n.out())
    places = n.cast(n.tensor("indices"), "int64")
    return n.op("ScatterNd", zeros, places, n.tensor("updates"), reduction="add")


_TENSOR_SCATTER = {
    "TensorScatterUpdate": "none",
    "TensorScatterAdd": "add",
    "TensorScatterMax": "max",
    "TensorScatterMin": "min",
    "TensorScatterMul": "mul",
}


@primitive(" ".join(_TENSOR_SCATTER), "input indices updates")
def _tensor_scatter(n: MsNode) -> Any:
    places = n.cast(n.tensor("indices"), "int64")
    return n.op(
        "ScatterNd", n.tensor("input"), places, n.tensor("updates"), reduction=_TENSOR_SCATTER[n.type]
    )


@primitive("TensorScatterSub", "input indices updates")
def _tensor_scatter_sub(n: MsNode) -> Any:
    places = n.cast(n.tensor("indices"), "int64")
    return n.op("ScatterNd", n.tensor("input"), places, n.op("Neg", n.tensor("updates")), reduction="add")


@primitive("TensorScatterElements", "data indices updates axis=0 reduce='none'")
def _scatter_elements(n: MsNode) -> Any:
    x = n.tensor("data")
    reduction = n.setting("reduce", "none")
    if isinstance(reduction, int):
        reduction = {0: "none", 1: "add", 2: "mul"}[reduction]
    axis = int(n.setting("axis", 0)) % desc_of(x).rank
    return n.op(
        "ScatterElements", x, n.tensor("indices"), n.tensor("updates"), axis=axis, reduction=reduction
    )


@primitive("UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin", "x segment_ids num_segments")
def _segments(n: MsNode) -> Any:
    """Rows combined by their segment; those of negative segments are left out, as MindSpore does."""
    x, segments, out = n.tensor("x"), n.tensor("segment_ids"), n.out()
    if n.type != "UnsortedSegmentSum":
        raise Unsupported("extremes of segments")
    size = desc_of(segments).size
    places = n.shaped(n.cast(segments, "int64"), [size, 1])
    rows = n.shaped(x, [size, *out.shape[1:]])
    return n.op("ScatterNd", n.filled(0, out), places, rows, reduction="add")


@primitive("EmbeddingDenseBackward", "grad indices num_weights padding_idx=None scale_grad_by_freq=False")
def _embedding_backward(n: MsNode) -> Any:
    if n.setting("scale_grad_by_freq"):
        raise Unsupported("a gradient scaled by frequency")
    g, places, out = n.tensor("grad"), n.tensor("indices"), n.out()
    size = desc_of(places).size
    rows = n.shaped(g, [size, out.shape[1]])
    skipped = n.setting("padding_idx")
    if skipped is not None and int(skipped) >= 0:
        kept = n.op("NotEqual", places, n.cast(int(skipped), desc_of(places).dtype))
        rows = n.op("Mul", rows, n.shaped(n.cast(kept, out.dtype), [size, 1]))
    spots = n.shaped(n.cast(places, "int64"), [size, 1])
    return n.op("ScatterNd", n.filled(0, out), spots, rows, reduction="add")


@primitive("OneHot OneHotExt", "indices depth on_value off_value axis=-1")
def _one_hot(n: MsNode) -> Any:
    places, out = n.tensor("indices"), n.out()
    axis = int(n.setting("axis", -1)) % out.rank
    rank = desc_of(places).rank
    shape = list(desc_of(places).shape)
    lifted = n.shaped(places, [*shape[:axis], 1, *shape[axis:]])
    wanted = np.arange(out.shape[axis]).astype(numpy_dtype(desc_of(places).dtype))
    wanted = wanted.reshape([-1 if a == axis else 1 for a in range(rank + 1)])
    on, off = (n.spread(n.cast(n.arg(k), out.dtype), out.shape) for k in ("on_value", "off_value"))
    return n.op("Select", n.spread(n.op("Equal", lifted, n.builder.constant(wanted)), out.shape), on, off)


# -- creation ----------------------------------------------------------------------------------------------------


@primitive("Zeros ZerosLike ZerosLikeExt NewZeros Empty EmptyLike NewEmpty", "x")
def _zeros(n: MsNode) -> Any:
    return n.filled(0, n.out())


@primitive("Ones OnesLike OnesLikeExt NewOnes", "x")
def _ones(n: MsNode) -> Any:
    return n.filled(1, n.out())


@primitive("FillScalar FillTensor FullLike Fills FillV2", "x value")
def _fill(n: MsNode) -> Any:
    return (
        n.filled(n.arg("value"), n.out())
        if not isinstance(n.arg("value"), ir.Value)
        else n.spread(n.cast(n.shaped(n.arg("value"), []), n.out().dtype), n.out().shape)
    )


@primitive("NewFull", "x size value dtype=None")
def _new_full(n: MsNode) -> Any:
    return n.filled(n.setting("value"), n.out())


@primitive("Fill", "dtype shape value")
def _fill_old(n: MsNode) -> Any:
    return n.filled(n.setting("value"), n.out())


@primitive("Arange Range", "start end step=1")
def _arange(n: MsNode) -> Any:
    start, end, step = (n.setting(k) for k in ("start", "end", "step"))
    values = np.arange(start, end, step).astype(numpy_dtype(n.out().dtype))
    return n.builder.constant(values)


@primitive("LinSpace LinSpaceExt", "start stop num")
def _lin_space(n: MsNode) -> Any:
    start, stop, count = (n.setting(k) for k in ("start", "stop", "num"))
    return n.builder.constant(np.linspace(start, stop, int(count), dtype=numpy_dtype(n.out().dtype)))


@primitive("Eye", "n m dtype=None")
def _eye(n: MsNode) -> Any:
    rows, columns = n.out().shape
    return n.builder.constant(np.eye(rows, columns, dtype=numpy_dtype(n.out().dtype)))


@primitive("Shape TensorShape DynamicShape", "x")
def _shape(n: MsNode) -> Any:
    shape = desc_of(n.tensor("x")).shape
    if n.type == "Shape":
        return tuple(int(d) for d in shape)
    return n.builder.constant(np.asarray(shape, np.int64))


@primitive("Rank", "x")
def _rank(n: MsNode) -> Any:
    return desc_of(n.tensor("x")).rank


@primitive("Size", "x")
def _size(n: MsNode) -> Any:
    return desc_of(n.tensor("x")).size


@primitive("DType", "x")
def _dtype_of(n: MsNode) -> Any:
    from ge.parsers.mindir.protos import TYPE_IDS

    return next(number for number, name in TYPE_IDS.items() if name == desc_of(n.tensor("x")).dtype)


@primitive("ScalarToTensor ScalarToArray TupleToTensor ListToTensor", "x dtype=None")
def _to_tensor(n: MsNode) -> Any:
    value = n.arg("x")
    if isinstance(value, tuple) and any(isinstance(v, ir.Value) for v in value):
        rows = [n.shaped(n.cast(v, n.out().dtype), [1]) for v in value]
        return n.op("Concat", *rows, axis=0) if len(rows) > 1 else rows[0]
    if isinstance(value, ir.Value):
        return n.cast(value, n.out().dtype)
    return n.builder.constant(np.asarray(value).astype(numpy_dtype(n.out().dtype)))


@primitive("TensorToScalar", "x")
def _to_scalar(n: MsNode) -> Any:
    return n.setting("x")


@primitive("ScalarCast", "x dtype")
def _scalar_cast(n: MsNode) -> Any:
    value, dtype = n.setting("x"), n.dtype("dtype", "float32")
    return bool(value) if dtype == "bool" else float(value) if "float" in dtype else int(value)


_SCALAR = {
    "ScalarAdd": lambda a, b: a + b,
    "ScalarSub": lambda a, b: a - b,
    "ScalarMul": lambda a, b: a * b,
    "ScalarDiv": lambda a, b: a / b,
    "ScalarFloorDiv": lambda a, b: a // b,
    "ScalarMod": lambda a, b: a % b,
    "ScalarPow": lambda a, b: a**b,
    "ScalarGt": lambda a, b: a > b,
    "ScalarGe": lambda a, b: a >= b,
    "ScalarLt": lambda a, b: a < b,
    "ScalarLe": lambda a, b: a <= b,
    "ScalarEq": lambda a, b: a == b,
}


@primitive(" ".join(_SCALAR), "x y")
def _scalar(n: MsNode) -> Any:
    return _SCALAR[n.type](n.setting("x"), n.setting("y"))


@primitive("Meshgrid", "inputs indexing='xy'")
def _meshgrid(n: MsNode) -> Any:
    values = n.tensors("inputs")
    swapped = n.setting("indexing", "xy") in ("xy", 1) and len(values) > 1
    found = []
    for index, value in enumerate(values):
        axis = {0: 1, 1: 0}.get(index, index) if swapped else index
        shape = [desc_of(value).size if a == axis else 1 for a in range(len(values))]
        found.append(n.spread(n.shaped(value, shape), n.out(0).shape))
    return tuple(found)


@primitive("DepthToSpace SpaceToDepth", "x block_size")
def _blocks(n: MsNode) -> Any:
    x, size = n.tensor("x"), int(n.setting("block_size"))
    return n.op(n.type, x, block=size)


@primitive(
    "ResizeNearestNeighbor ResizeNearestNeighborV2 ResizeBilinearV2 ResizeBicubic",
    "image size align_corners=False half_pixel_centers=False",
)
def _resize(n: MsNode) -> Any:
    mode = "nearest" if "Nearest" in n.type else "linear" if "Bilinear" in n.type else "cubic"
    corners, half = bool(n.setting("align_corners", False)), bool(n.setting("half_pixel_centers", False))
    coordinates = "align_corners" if corners else "half_pixel" if half else "asymmetric"
    if mode != "linear":
        raise Unsupported(f"resizing with mode {mode}")
    x = n.tensor("image")
    return n.op("Resize", x, axes=[2, 3], sizes=list(n.out().shape[2:]), mode=mode, coordinates=coordinates)
