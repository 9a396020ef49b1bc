"""PaddlePaddle: constants, shapes, slices and data movement, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import TensorDesc, numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.plugins import Unsupported
from ge.parsers.paddle.node import PaddleNode, axis_of, paddle

# -- constants ---------------------------------------------------------------------------------------------


@paddle("full")
def _full(n: PaddleNode) -> Any:
    shape = [int(d) for d in n.attr("shape")]
    return n.filled(n.attr("value"), TensorDesc(tuple(shape), n.attr("dtype")))


@paddle("full_int_array")
def _full_int_array(n: PaddleNode) -> Any:
    return n.constant(np.asarray(n.attr("value"), np.int64), n.attr("dtype"))


@paddle("full_like")
def _full_like(n: PaddleNode) -> Any:
    dtype = n.attr("dtype")
    known = dtype if not str(dtype).startswith("Undefined") else n.like().dtype
    return n.spread(n.cast(n.shaped(n.inputs[1], []), known), n.like().shape)


@paddle("full_with_tensor")
def _full_with_tensor(n: PaddleNode) -> Any:
    return n.spread(n.cast(n.shaped(n.inputs[0], []), n.attr("dtype")), _sizes(n, 1, "shape"))


@paddle("full_batch_size_like")
def _full_batch_size_like(n: PaddleNode) -> Any:
    shape = [int(d) for d in n.attr("shape")]
    shape[n.attr("output_dim_idx", 0)] = n.like().shape[n.attr("input_dim_idx", 0)]
    return n.filled(n.attr("value"), TensorDesc(tuple(shape), n.attr("dtype")))


@paddle("assign_value", "assign_value_")
def _assign_value(n: PaddleNode) -> Any:
    shape = [int(d) for d in n.attr("shape")]
    return n.constant(np.asarray(n.attr("values")).reshape(shape), n.attr("dtype"))


@paddle("assign", "share_data", "memcpy_h2d", "memcpy_d2h", "npu_identity", "share_var", "depend")
def _assign(n: PaddleNode) -> Any:
    return n.op("Identity", n.inputs[0])


@paddle("assign_out_")
def _assign_out(n: PaddleNode) -> Any:
    return n.op("Identity", n.inputs[0])


@paddle("shape", "shape64")
def _shape(n: PaddleNode) -> Any:
    return n.constant(np.asarray(n.like().shape, np.int64), n.operation.results[0].dtype)


@paddle("numel")
def _numel(n: PaddleNode) -> Any:
    return n.constant(n.like().size, "int64")


@paddle("arange", "range_v2")
def _arange(n: PaddleNode) -> Any:
    start, end, step = (n.number(i) for i in range(3))
    return n.constant(np.arange(start, end, step), n.attr("dtype"))


@paddle("linspace")
def _linspace(n: PaddleNode) -> Any:
    start, stop, count = (n.number(i) for i in range(3))
    return n.constant(np.linspace(start, stop, int(count)), n.attr("dtype"))


@paddle("eye")
def _eye(n: PaddleNode) -> Any:
    rows, columns = int(n.number(0)), int(n.number(1))
    return n.constant(np.eye(rows, columns if columns >= 0 else rows), n.attr("dtype"))


# -- shapes ------------------------------------------------------------------------------------------------


def _sizes(n: PaddleNode, index: int, what: str) -> list[int]:
    """Sizes that an input gives: one constant tensor, or a list of constant tensors."""
    if isinstance(n.inputs[index], list):
        found = [constant_of(v) for v in n.tensors(index)]
        if any(v is None for v in found):
            raise Unsupported(f"{what} is computed at run time", "give the model static input shapes")
        return [int(v.reshape(-1)[0]) for v in found if v is not None]
    return n.ints(index, what)


@paddle("reshape", "view_shape")
def _reshape(n: PaddleNode) -> Any:
    """0 keeps a dimension, -1 is what is left."""
    source = n.like()
    shape = [int(d) for d in n.attr("dims")] if n.type == "view_shape" else _sizes(n, 1, "shape")
    if source.size:
        shape = [source.shape[i] if d == 0 else d for i, d in enumerate(shape)]
    if -1 in shape:
        rest = math.prod(d for d in shape if d != -1)
        shape[shape.index(-1)] = source.size // rest if rest else 0
    return n.shaped(n.inputs[0], shape)


@paddle("flatten")
def _flatten(n: PaddleNode) -> Any:
    shape = n.like().shape
    if not shape:
        return n.shaped(n.inputs[0], [1])
    first, last = (axis_of(n.attr(k), len(shape)) for k in ("start_axis", "stop_axis"))
    return n.shaped(n.inputs[0], [*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]])


@paddle("squeeze")
def _squeeze(n: PaddleNode) -> Any:
    shape = n.like().shape
    axes = {axis_of(a, len(shape)) for a in n.ints(1)} or set(range(len(shape)))
    return n.shaped(n.inputs[0], [d for i, d in enumerate(shape) if d != 1 or i not in axes])


@paddle("unsqueeze")
def _unsqueeze(n: PaddleNode) -> Any:
    shape = list(n.like().shape)
    for axis in n.ints(1):
        shape.insert(axis_of(axis, len(shape) + 1), 1)
    return n.shaped(n.inputs[0], shape)


@paddle("reshape_grad", "flatten_grad", "squeeze_grad", "unsqueeze_grad")
def _like_first(n: PaddleNode) -> Any:
    """The gradient in the shape of the operand (whose elements are not read)."""
    return n.shaped(n.inputs[1], n.like().shape)


@paddle("transpose")
def _transpose(n: PaddleNode) -> Any:
    rank = n.like().rank
    return n.turned(n.inputs[0], [axis_of(p, rank) for p in n.attr("perm")])


@paddle("transpose_grad")
def _transpose_grad(n: PaddleNode) -> Any:
    perm = [axis_of(p, n.like().rank) for p in n.attr("perm")]
    return n.turned(n.inputs[0], np.argsort(perm).tolist())


@paddle("expand")
def _expand(n: PaddleNode) -> Any:
    """-1 keeps a dimension."""
    source, shape = list(n.like().shape), _sizes(n, 1, "shape")
    lead = len(shape) - len(source)
    kept = [1] * lead + source
    return n.spread(n.inputs[0], [k if d == -1 else d for k, d in zip(kept, shape, strict=True)])


@paddle("expand_as")
def _expand_as(n: PaddleNode) -> Any:
    shape = n.desc(1).shape if n.input(1) is not None else n.attr("target_shape")
    return n.spread(n.inputs[0], shape)


@paddle("expand_grad", "expand_as_grad")
def _expand_grad(n: PaddleNode) -> Any:
    return n.sum_to(n.inputs[1], n.like())


@paddle("tile")
def _tile(n: PaddleNode) -> Any:
    repeats = _sizes(n, 1, "repeat_times")
    shape = n.like().shape
    rank = max(len(repeats), len(shape))
    x = n.shaped(n.inputs[0], [1] * (rank - len(shape)) + list(shape))
    return n.op("Tile", x, repeats=[1] * (rank - len(repeats)) + repeats)


@paddle("tile_grad")
def _tile_grad(n: PaddleNode) -> Any:
    """The repetitions become axes of their own, which are summed."""
    shape, repeats = list(n.like().shape), _sizes(n, 2, "repeat_times")
    rank = max(len(shape), len(repeats))
    wide = [1] * (rank - len(shape)) + shape
    repeats = [1] * (rank - len(repeats)) + repeats
    pairs = [v for pair in zip(repeats, wide, strict=True) for v in pair]
    spread = n.shaped(n.inputs[1], pairs)
    return n.shaped(n.op("ReduceSum", spread, axes=list(range(0, 2 * rank, 2)), keepdims=False), shape)


# -- joining and cutting -----------------------------------------------------------------------------------


@paddle("concat")
def _concat(n: PaddleNode) -> Any:
    parts = n.tensors()
    axis = axis_of(int(n.number(1)), desc_of(parts[0]).rank)
    return n.builder.ops("Concat", parts, axis=axis)[0]


@paddle("concat_grad")
def _concat_grad(n: PaddleNode) -> Any:
    parts, axis = n.tensors(), int(n.number(2))
    axis = axis_of(axis, desc_of(parts[0]).rank)
    sizes = [desc_of(p).shape[axis] for p in parts]
    return [_cut(n, n.inputs[1], axis, sum(sizes[:i]), size) for i, size in enumerate(sizes)]


@paddle("stack")
def _stack(n: PaddleNode) -> Any:
    parts = n.tensors()
    shape = list(desc_of(parts[0]).shape)
    axis = axis_of(n.attr("axis"), len(shape) + 1)
    shape.insert(axis, 1)
    return n.builder.ops("Concat", [n.shaped(p, shape) for p in parts], axis=axis)[0]


def _unstacked(n: PaddleNode, x: Any, axis: int) -> list[Any]:
    shape = list(desc_of(x).shape)
    axis = axis_of(axis, len(shape))
    rest = shape[:axis] + shape[axis + 1 :]
    return [n.shaped(_cut(n, x, axis, i, 1), rest) for i in range(shape[axis])]


@paddle("unbind", "unstack")
def _unbind(n: PaddleNode) -> Any:
    return [_unstacked(n, n.inputs[0], n.attr("axis"))]


@paddle("stack_grad")
def _stack_grad(n: PaddleNode) -> Any:
    return [_unstacked(n, n.inputs[-1], n.attr("axis"))]


@paddle("unbind_grad", "unstack_grad")
def _unbind_grad(n: PaddleNode) -> Any:
    return _stack(n)


def _cut(n: PaddleNode, x: Any, axis: int, start: int, size: int) -> Any:
    shape = desc_of(x).shape
    starts = [start if i == axis else 0 for i in range(len(shape))]
    ends = [start + size if i == axis else d for i, d in enumerate(shape)]
    return n.op("Slice", x, starts=starts, ends=ends)


def _cut_up(n: PaddleNode, axis: int, sizes: Sequence[int]) -> Any:
    return [[_cut(n, n.inputs[0], axis, sum(sizes[:i]), size) for i, size in enumerate(sizes)]]


@paddle("split")
def _split(n: PaddleNode) -> Any:
    axis = axis_of(int(n.number(2)), n.like().rank)
    sizes = _sizes(n, 1, "sections")
    if -1 in sizes:
        sizes[sizes.index(-1)] = n.like().shape[axis] - sum(s for s in sizes if s != -1)
    return _cut_up(n, axis, sizes)


@paddle("split_with_num")
def _split_with_num(n: PaddleNode) -> Any:
    axis = axis_of(int(n.number(1)), n.like().rank)
    count = n.attr("num")
    return _cut_up(n, axis, [n.like().shape[axis] // count] * count)


@paddle("split_grad", "split_with_num_grad")
def _split_grad(n: PaddleNode) -> Any:
    parts = n.tensors()
    axis = axis_of(int(n.number(1)), desc_of(parts[0]).rank)
    return n.builder.ops("Concat", parts, axis=axis)[0]


def _bounds(n: PaddleNode, shape: Sequence[int], first: int) -> tuple[list[int], list[int]]:
    """Starts and ends of a slice on all axes; inputs `first` and the next give those of the axes named."""
    starts, ends = [0] * len(shape), list(shape)
    given = zip(n.attr("axes"), _sizes(n, first, "starts"), _sizes(n, first + 1, "ends"), strict=True)
    for axis, start, end in given:
        size = shape[axis]
        starts[axis] = min(max(start + size if start < 0 else start, 0), size)
        ends[axis] = max(min(end + size if end < 0 else end, size), starts[axis])
    return starts, ends


def _without(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    return [d for i, d in enumerate(shape) if i not in set(axes)]


@paddle("slice")
def _slice(n: PaddleNode) -> Any:
    shape = n.like().shape
    starts, ends = _bounds(n, shape, 1)
    part = n.op("Slice", n.inputs[0], starts=starts, ends=ends)
    return n.shaped(part, _without(desc_of(part).shape, n.attr("decrease_axis") or ()))


@paddle("slice_grad")
def _slice_grad(n: PaddleNode) -> Any:
    shape = n.like().shape
    starts, ends = _bounds(n, shape, 2)
    g = n.shaped(n.inputs[1], [e - s for s, e in zip(starts, ends, strict=True)])
    return n.op("Pad", g, low=starts, high=[d - e for d, e in zip(shape, ends, strict=True)])


@paddle("strided_slice")
def _strided_slice(n: PaddleNode) -> Any:
    shape = n.like().shape
    starts, ends, steps = [0] * len(shape), list(shape), [1] * len(shape)
    rows = zip(n.attr("axes"), *(_sizes(n, i, "bounds") for i in (1, 2, 3)), strict=True)
    for axis, start, end, step in rows:
        found = slice(start, None if step < 0 and end < -shape[axis] else end, step)
        first, stop, step = found.indices(shape[axis])
        starts[axis], ends[axis], steps[axis] = first, stop, step
    return n.op("Slice", n.inputs[0], starts=starts, ends=ends, steps=steps)


@paddle("flip", "reverse")
def _flip(n: PaddleNode) -> Any:
    axes = n.attr("axis") if n.type == "flip" else n.ints(1)
    return n.aten("flip", [n.like()], self=n.inputs[0], dims=[int(a) for a in axes])


@paddle("roll")
def _roll(n: PaddleNode) -> Any:
    return n.aten("roll", [n.like()], self=n.inputs[0], shifts=n.ints(1), dims=list(n.attr("axis") or []))


@paddle("pad")
def _pad(n: PaddleNode) -> Any:
    pairs = [int(p) for p in n.attr("paddings")]
    value = n.number(1, 0) if len(n.inputs) > 1 else n.attr("pad_value", 0)
    return _padded(n, n.inputs[0], pairs[::2], pairs[1::2], value)


def _padded(n: PaddleNode, x: Any, low: list[int], high: list[int], value: float) -> Any:
    dims = [p for pair in zip(low[::-1], high[::-1], strict=True) for p in pair]
    shape = [d + a + b for d, a, b in zip(desc_of(x).shape, low, high, strict=True)]
    desc = TensorDesc(tuple(shape), desc_of(x).dtype)
    return n.aten("constant_pad_nd", [desc], self=x, pad=dims, value=value)


@paddle("pad3d")
def _pad3d(n: PaddleNode) -> Any:
    """Borders of width, height and depth, from the last axis on."""
    pads, mode = _sizes(n, 1, "paddings"), n.attr("mode")
    desc = n.like()
    axes = [4, 3, 2] if n.attr("data_format") == "NCDHW" else [3, 2, 1]
    low, high = [0] * 5, [0] * 5
    for place, axis in enumerate(axes):
        low[axis], high[axis] = pads[2 * place], pads[2 * place + 1]
    if mode == "constant":
        return _padded(n, n.inputs[0], low, high, n.attr("pad_value", 0.0))
    if n.attr("data_format") != "NCDHW" or mode not in ("reflect", "replicate"):
        raise Unsupported(f"a border of mode {mode}")
    shape = tuple(d + a + b for d, a, b in zip(desc.shape, low, high, strict=True))
    target = {"reflect": "reflection_pad3d", "replicate": "replication_pad3d"}[mode]
    return n.aten(target, [TensorDesc(shape, desc.dtype)], self=n.inputs[0], padding=pads)


@paddle("pad3d_grad", "pad_grad")
def _pad_grad(n: PaddleNode) -> Any:
    desc = n.like()
    if n.type == "pad_grad":
        low = [int(p) for p in n.attr("paddings")][::2]
    elif n.attr("mode") == "constant" and n.attr("data_format") == "NCDHW":
        pads = _sizes(n, 2, "paddings")
        low = [0, 0, pads[4], pads[2], pads[0]]
    else:
        raise Unsupported(f"the gradient of a border of mode {n.attr('mode')}")
    return n.op("Slice", n.inputs[1], starts=low, ends=[s + d for s, d in zip(low, desc.shape, strict=True)])


@paddle("tril", "triu")
def _triangle(n: PaddleNode) -> Any:
    return n.aten(n.type, [n.like()], self=n.inputs[0], diagonal=n.attr("diagonal", 0))


@paddle("tril_grad", "triu_grad")
def _triangle_grad(n: PaddleNode) -> Any:
    return n.aten(n.type.removesuffix("_grad"), [n.like()], self=n.inputs[0], diagonal=n.attr("diagonal", 0))


@paddle("diagonal")
def _diagonal(n: PaddleNode) -> Any:
    return n.aten(
        "diagonal",
        [n.out()],
        self=n.inputs[0],
        offset=n.attr("offset"),
        dim1=n.attr("axis1"),
        dim2=n.attr("axis2"),
    )


@paddle("meshgrid")
def _meshgrid(n: PaddleNode) -> Any:
    parts = n.tensors()
    shape = [desc_of(p).size for p in parts]
    lifted = (n.shaped(p, [s if i == k else 1 for k, s in enumerate(shape)]) for i, p in enumerate(parts))
    return [[n.spread(v, shape) for v in lifted]]


@paddle("pixel_shuffle")
def _pixel_shuffle(n: PaddleNode) -> Any:
    if n.attr("data_format", "NCHW") != "NCHW":
        raise Unsupported("pixel_shuffle of channels last")
    factor, (batch, channels, height, width) = n.attr("upscale_factor"), n.like().shape
    desc = TensorDesc((batch, channels // factor**2, height * factor, width * factor), n.like().dtype)
    return n.aten("pixel_shuffle", [desc], self=n.inputs[0], upscale_factor=factor)


@paddle("builtin_split", "slice_array")
def _vector(n: PaddleNode) -> Any:
    raise Unsupported("lists of tensors of open length")


# -- by index ----------------------------------------------------------------------------------------------


@paddle("gather")
def _gather(n: PaddleNode) -> Any:
    axis = axis_of(int(n.number(2, 0)), n.like().rank)
    index = n.inputs[1]
    if desc_of(index).rank == 2 and desc_of(index).shape[1] == 1:
        index = n.shaped(index, [desc_of(index).shape[0]])
    return n.op("Gather", n.inputs[0], index, axis=axis)


@paddle("gather_grad")
def _gather_grad(n: PaddleNode) -> Any:
    axis = axis_of(int(n.number(3, 0)), n.like().rank)
    index = n.shaped(n.inputs[1], [n.desc(1).size])
    return _index_sum(n, n.like(), index, n.inputs[2], axis)


def _index_sum(n: PaddleNode, desc: TensorDesc, index: Any, g: Any, axis: int) -> Any:
    """Slices of a gradient added where an index says."""
    zeros = n.filled(0, desc)
    return n.aten("index_add", [desc], self=zeros, dim=axis, index=n.cast(index, "int64"), source=g, alpha=1)


@paddle("gather_nd")
def _gather_nd(n: PaddleNode) -> Any:
    return n.op("GatherNd", n.inputs[0], n.inputs[1])


@paddle("index_select")
def _index_select(n: PaddleNode) -> Any:
    return n.op("Gather", n.inputs[0], n.inputs[1], axis=axis_of(n.attr("axis"), n.like().rank))


@paddle("index_select_grad")
def _index_select_grad(n: PaddleNode) -> Any:
    return _index_sum(n, n.like(), n.inputs[1], n.inputs[2], axis_of(n.attr("axis"), n.like().rank))


@paddle("take_along_axis")
def _take_along_axis(n: PaddleNode) -> Any:
    return n.op("GatherElements", n.inputs[0], n.inputs[1], axis=axis_of(n.attr("axis"), n.like().rank))


@paddle("take_along_axis_grad")
def _take_along_axis_grad(n: PaddleNode) -> Any:
    axis = axis_of(n.attr("axis"), n.like().rank)
    zeros = n.filled(0, n.like())
    return n.op("ScatterElements", zeros, n.inputs[1], n.inputs[2], axis=axis, reduction="add")


@paddle("index_sample")
def _index_sample(n: PaddleNode) -> Any:
    return n.op("GatherElements", n.inputs[0], n.inputs[1], axis=1)


@paddle("scatter")
def _scatter(n: PaddleNode) -> Any:
    """Rows set; with `overwrite` off the rows named are zeroed first and the new ones added."""
    x, updates = n.inputs[0], n.inputs[2]
    desc, ids = n.like(), n.cast(n.shaped(n.inputs[1], [n.desc(1).size]), "int64")
    if n.attr("overwrite"):
        return n.aten("index_copy", [desc], self=x, dim=0, index=ids, source=updates)
    zeroed = n.aten("index_copy", [desc], self=x, dim=0, index=ids, source=n.filled(0, desc_of(updates)))
    return n.aten("index_add", [desc], self=zeroed, dim=0, index=ids, source=updates, alpha=1)


@paddle("scatter_nd_add")
def _scatter_nd_add(n: PaddleNode) -> Any:
    return n.op("ScatterNd", *n.inputs[:3], reduction="add")


@paddle("put_along_axis")
def _put_along_axis(n: PaddleNode) -> Any:
    kinds = {"assign": "none", "add": "add", "multiply": "mul", "mul": "mul", "amax": "max", "amin": "min"}
    kind = n.attr("reduce")
    if kind not in kinds or not n.attr("include_self", True):
        raise Unsupported(f"put_along_axis with reduce={kind}")
    axis = axis_of(n.attr("axis"), n.like().rank)
    values = n.spread(n.inputs[2], n.desc(1).shape)
    return n.op("ScatterElements", n.inputs[0], n.inputs[1], values, axis=axis, reduction=kinds[kind])


@paddle("embedding")
def _embedding(n: PaddleNode) -> Any:
    """Rows of the weight; those of the padding index are zeros."""
    index, weight = n.inputs[:2]
    rows = n.op("Gather", weight, index, axis=0)
    padding = n.attr("padding_idx", -1)
    if padding < 0:
        return rows
    is_padding = n.op("Equal", index, n.constant(padding, desc_of(index).dtype))
    return n.op(
        "Select", n.shaped(is_padding, [*desc_of(index).shape, 1]), n.constant(0, desc_of(rows).dtype), rows
    )


@paddle("embedding_grad")
def _embedding_grad(n: PaddleNode) -> Any:
    index, weight, g = n.inputs[:3]
    if n.attr("sparse"):
        raise Unsupported("a sparse gradient", "use nn.Embedding(sparse=False)")
    return n.aten(
        "embedding_dense_backward",
        [desc_of(weight)],
        grad_output=g,
        indices=index,
        num_weights=desc_of(weight).shape[0],
        padding_idx=n.attr("padding_idx", -1),
        scale_grad_by_freq=False,
    )


@paddle("one_hot")
def _one_hot(n: PaddleNode) -> Any:
    classes = np.arange(int(n.number(1)))
    index = n.shaped(n.inputs[0], [*n.like().shape, 1])
    return n.cast(n.op("Equal", index, n.constant(classes, n.like().dtype)), "float32")


@paddle("masked_fill")
def _masked_fill(n: PaddleNode) -> Any:
    return n.op("Select", n.inputs[1], n.cast(n.shaped(n.inputs[2], []), n.like().dtype), n.inputs[0])


def _set(n: PaddleNode, value: Any) -> Any:
    """A slice set to a value: the value spread over a mask of the places."""
    desc = n.like()
    places = [np.ones(d, bool) for d in desc.shape]
    count = 1 if n.type == "set_value" else 2
    rows = zip(n.attr("axes"), *(_sizes(n, count + i, "bounds") for i in range(3)), strict=True)
    shape = list(desc.shape)
    for axis, start, end, step in rows:
        found = np.zeros(desc.shape[axis], bool)
        found[slice(start, end, step)] = True
        if step != 1:
            raise Unsupported("setting a slice with steps")
        places[axis], shape[axis] = found, int(found.sum())
    kept = _without(shape, n.attr("decrease_axes") or ())
    for axis in n.attr("none_axes") or ():
        kept.insert(axis, 1)
    lows = [int(np.argmax(p)) for p in places]
    spread = n.shaped(n.spread(value, kept), shape)
    highs = [d - low - s for d, low, s in zip(desc.shape, lows, shape, strict=True)]
    padded = n.op("Pad", spread, low=lows, high=highs)
    mask = np.ones(desc.shape, bool)
    for axis, place in enumerate(places):
        mask &= place.reshape([-1 if i == axis else 1 for i in range(desc.rank)])
    return n.op("Select", n.builder.constant(mask), padded, n.inputs[0])


@paddle("set_value")
def _set_value(n: PaddleNode) -> Any:
    dtype = n.like().dtype
    values = np.asarray(n.attr("values"), numpy_dtype(dtype)).reshape([int(d) for d in n.attr("shape")])
    return _set(n, n.builder.constant(values))


@paddle("set_value_with_tensor")
def _set_value_with_tensor(n: PaddleNode) -> Any:
    return _set(n, n.cast(n.inputs[1], n.like().dtype))
