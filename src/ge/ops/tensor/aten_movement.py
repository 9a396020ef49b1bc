"""ATen: views, slices and padding. In a functional graph a view is an ordinary value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.plugins import Unsupported
from ge.ops.tensor.movement import box

MAX_POSITIONS = 1 << 20  # of a table of positions kept as a constant


def axis_of(n: AtenNode, name: str = "dim", default: int = 0) -> int:
    """An axis counted from the front."""
    rank = desc_of(n.arg("self")).rank
    return int(n.arg(name, default)) % max(rank, 1)


@aten(
    "view.default", "_unsafe_view", "reshape", "_reshape_alias", "view_copy.default", "flatten", "unflatten",
    "squeeze", "squeeze_copy", "unsqueeze", "unsqueeze_copy", "view_as", "expand_as_view", "ravel",
)  # fmt: skip
def _view(n: AtenNode) -> Any:
    """The framework has worked out the shape."""
    return n.shaped(n.arg("self"), n.out().shape)


@aten("expand", "expand_copy", "broadcast_to", "expand_as")
def _expand(n: AtenNode) -> Any:
    return n.spread(n.arg("self"), n.out().shape)


@aten("permute", "permute_copy")
def _permute(n: AtenNode) -> Any:
    rank = desc_of(n.arg("self")).rank
    return n.turned(n.arg("self"), [int(d) % rank for d in n.arg("dims")])


@aten("t", "t_copy", "numpy_T", "mT", "adjoint")
def _t(n: AtenNode) -> Any:
    rank = desc_of(n.arg("self")).rank
    return n.arg("self") if rank < 2 else n.turned(n.arg("self"), [*range(rank - 2), rank - 1, rank - 2])


@aten("transpose.int", "transpose_copy.int", "swapaxes", "swapdims")
def _transpose(n: AtenNode) -> Any:
    x = n.arg("self")
    rank = desc_of(x).rank
    if not rank:
        return x
    perm = list(range(rank))
    a, b = int(n.arg("dim0", n.arg("axis0", 0))) % rank, int(n.arg("dim1", n.arg("axis1", 0))) % rank
    perm[a], perm[b] = perm[b], perm[a]
    return n.turned(x, perm)


@aten("slice.Tensor", "slice_copy.Tensor")
def _slice(n: AtenNode) -> Any:
    x = n.arg("self")
    desc, axis = desc_of(x), axis_of(n)
    start, end, step = n.arg("start", 0), n.arg("end", desc.shape[axis]), n.arg("step", 1)
    attrs = box(desc.shape, [axis], [int(start)], [min(int(end), desc.shape[axis])], [int(step)])
    return x if n.out() == desc else n.op("Slice", x, **attrs)


@aten("select.int", "select_copy.int")
def _select(n: AtenNode) -> Any:
    x, axis = n.arg("self"), axis_of(n)
    shape = desc_of(x).shape
    index = int(n.arg("index")) % shape[axis]
    piece = n.op("Slice", x, **box(shape, [axis], [index], [index + 1], [1]))
    return n.shaped(piece, n.out().shape)


@aten("narrow", "narrow_copy")
def _narrow(n: AtenNode) -> Any:
    x, axis = n.arg("self"), axis_of(n)
    shape = desc_of(x).shape
    start = int(n.arg("start")) % max(shape[axis], 1)
    return n.op("Slice", x, **box(shape, [axis], [start], [start + int(n.arg("length"))], [1]))


@aten("cat", "concat", "concatenate")
def _cat(n: AtenNode) -> Any:
    """Parts without elements are left out."""
    out = n.out()
    parts = [n.cast(v, out.dtype) for v in n.arg("tensors") if desc_of(v).size]
    if not parts:
        return n.filled(0, out)
    axis = int(n.arg("dim", 0)) % out.rank
    return parts[0] if len(parts) == 1 else n.op("Concat", *parts, axis=axis)


@aten("stack")
def _stack(n: AtenNode) -> Any:
    out = n.out()
    axis = int(n.arg("dim", 0)) % out.rank
    shape = [*out.shape[:axis], 1, *out.shape[axis + 1 :]]
    parts = [n.shaped(n.cast(v, out.dtype), shape) for v in n.arg("tensors")]
    return parts[0] if len(parts) == 1 else n.op("Concat", *parts, axis=axis)


@aten(
    "split",
    "split_with_sizes",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "split_copy",
    "split_with_sizes_copy",
)
def _split(n: AtenNode) -> Any:
    axis = axis_of(n)
    sizes = [d.shape[axis] for d in n.results if d is not None]
    return _pieces(n, axis, sizes)


def _pieces(n: AtenNode, axis: int, sizes: list[int]) -> list[Any]:
    x = n.arg("self")
    if len(sizes) == 1:
        return [x]
    shape, start, found = desc_of(x).shape, 0, []
    for size in sizes:
        found.append(n.op("Slice", x, **box(shape, [axis], [start], [start + size], [1])))
        start += size
    return found


@aten("unbind", "unbind_copy")
def _unbind(n: AtenNode) -> Any:
    axis = axis_of(n)
    pieces = _pieces(n, axis, [1] * len(n.results))
    return [n.shaped(p, d.shape) for p, d in zip(pieces, n.results, strict=True) if d is not None]


@aten("flip")
def _flip(n: AtenNode) -> Any:
    x = n.arg("self")
    rank = desc_of(x).rank
    axes = [int(d) % rank for d in n.arg("dims")] if rank else []
    return n.op("Reverse", x, axes=axes) if axes else n.op("Identity", x)


@aten("roll")
def _roll(n: AtenNode) -> Any:
    x, shifts, dims = n.arg("self"), n.arg("shifts"), n.arg("dims", [])
    desc = desc_of(x)
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not desc.size:
        return n.op("Identity", x)
    if not dims:
        flat = n.op("Roll", n.shaped(x, [desc.size]), shifts=shifts, axes=[0])
        return n.shaped(flat, desc.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = n.op("Roll", x, shifts=[shift], axes=[dim % desc.rank])
    return x


@aten("repeat", "tile")
def _repeat(n: AtenNode) -> Any:
    x = n.arg("self")
    repeats = [int(r) for r in n.arg("repeats", n.arg("dims", []))]
    shape = desc_of(x).shape
    repeats = [1] * (len(shape) - len(repeats)) + repeats
    x = n.shaped(x, [1] * (len(repeats) - len(shape)) + list(shape))
    if 0 in n.out().shape:
        return n.filled(0, n.out())
    return x if set(repeats) <= {1} else n.op("Tile", x, repeats=repeats)


# -- borders -----------------------------------------------------------------------------------------------


def _borders(pads: list[int], rank: int) -> tuple[list[int], list[int]]:
    """ATen lists borders from the last axis on."""
    low, high = [0] * rank, [0] * rank
    for index in range(len(pads) // 2):
        low[rank - 1 - index], high[rank - 1 - index] = pads[2 * index], pads[2 * index + 1]
    return low, high


def _padded(n: AtenNode, mode: str, pads: list[int], value: float = 0.0) -> Any:
    x = n.arg("self")
    desc = desc_of(x)
    low, high = _borders(pads, desc.rank)
    if min((*low, *high), default=0) < 0:
        starts = [max(-p, 0) for p in low]
        ends = [d - max(-p, 0) for d, p in zip(desc.shape, high, strict=True)]
        x = n.op("Slice", x, starts=starts, ends=ends)
        low, high = [max(p, 0) for p in low], [max(p, 0) for p in high]
    return (
        n.op("Pad", x, mode=mode, low=low, high=high, value=value)
        if any((*low, *high))
        else n.op("Identity", x)
    )


@aten("constant_pad_nd")
def _constant_pad(n: AtenNode) -> Any:
    if desc_of(n.arg("self")).dtype == "bool":
        padded = n.op("Cast", n.arg("self"), to="uint8")
        low, high = _borders([int(p) for p in n.arg("pad")], desc_of(padded).rank)
        if min((*low, *high), default=0) < 0:
            raise Unsupported("negative borders of bools")
        return n.op(
            "Cast", n.op("Pad", padded, low=low, high=high, value=float(bool(n.arg("value", 0)))), to="bool"
        )
    return _padded(n, "constant", [int(p) for p in n.arg("pad")], float(n.arg("value", 0)))


@aten("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflection_pad(n: AtenNode) -> Any:
    return _padded(n, "reflect", [int(p) for p in n.arg("padding")])


@aten("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replication_pad(n: AtenNode) -> Any:
    return _padded(n, "edge", [int(p) for p in n.arg("padding")])


# -- triangles and diagonals -------------------------------------------------------------------------------


@aten("tril", "triu")
def _triangle(n: AtenNode) -> Any:
    return n.op("Trilu", n.arg("self"), upper=n.type.startswith("triu"), k=int(n.arg("diagonal", 0)))


def _table(n: AtenNode, positions: np.ndarray) -> Any:
    """Elements of the flattened tensor at constant positions."""
    if positions.size > MAX_POSITIONS:
        raise Unsupported(f"a table of {positions.size} positions")
    flat = n.shaped(n.arg("self"), [desc_of(n.arg("self")).size])
    taken = n.op("Gather", flat, n.builder.constant(positions.reshape(-1).astype(np.int64)), axis=0)
    return n.shaped(taken, positions.shape)


def _grid(n: AtenNode) -> np.ndarray:
    desc = desc_of(n.arg("self"))
    if not desc.size or desc.size > MAX_POSITIONS:
        raise Unsupported(f"positions in {desc}")
    return np.arange(desc.size, dtype=np.int64).reshape(desc.shape)


@aten("diagonal", "diagonal_copy")
def _diagonal(n: AtenNode) -> Any:
    found = np.diagonal(_grid(n), int(n.arg("offset", 0)), int(n.arg("dim1", 0)), int(n.arg("dim2", 1)))
    return _table(n, found) if found.size else n.filled(0, n.out())


@aten("unfold", "unfold_copy")
def _unfold(n: AtenNode) -> Any:
    x = n.arg("self")
    if not desc_of(x).rank:
        return n.shaped(x, n.out().shape)
    axis, size, step = axis_of(n, "dimension"), int(n.arg("size")), int(n.arg("step"))
    windows = np.lib.stride_tricks.sliding_window_view(_grid(n), size, axis=axis)
    found = windows[(slice(None),) * axis + (slice(None, None, step),)]
    return _table(n, found)


@aten("as_strided", "as_strided_copy")
def _as_strided(n: AtenNode) -> Any:
    """The memory of a dense tensor under other sizes and strides."""
    x, old = n.arg("self"), list(n.arg("self_strides"))
    desc = desc_of(x)
    size, stride = [int(d) for d in n.arg("size")], [int(d) for d in n.arg("stride")]
    if n.arg("storage_offset") or not desc.size or 0 in size:
        raise Unsupported("a view into the middle of a tensor's memory")
    order = sorted(range(desc.rank), key=lambda a: -old[a])
    stored = n.turned(x, order)
    if not _is_dense(desc_of(stored).shape, [old[a] for a in order]):
        raise Unsupported("a view of memory with gaps")
    axes = sorted(range(len(size)), key=lambda a: -stride[a])
    wanted = [size[a] for a in axes]
    if math.prod(size) == desc.size and _is_dense(wanted, [stride[a] for a in axes]):
        return n.turned(n.shaped(stored, wanted), [axes.index(a) for a in range(len(size))])
    reach = sum((d - 1) * s for d, s in zip(size, stride, strict=True))
    if reach >= desc.size or math.prod(size) > MAX_POSITIONS:
        raise Unsupported("a view beyond a tensor's memory")
    places = np.zeros(size, np.int64)
    for axis, (extent, step) in enumerate(zip(size, stride, strict=True)):
        places += (np.arange(extent) * step).reshape([-1 if i == axis else 1 for i in range(len(size))])
    flat = n.shaped(stored, [desc.size])
    taken = n.op("Gather", flat, n.builder.constant(places.reshape(-1)), axis=0)
    return n.shaped(taken, size)


def _is_dense(shape: Any, strides: list[int]) -> bool:
    """Whether axes in falling order of strides leave no gaps."""
    step = 1
    for extent, stride in zip(reversed(list(shape)), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


# -- writing into pieces -----------------------------------------------------------------------------------


@aten("slice_scatter")
def _slice_scatter(n: AtenNode) -> Any:
    """Runs of whole rows are put together from three parts; other steps write at positions."""
    x, src, axis = n.arg("self"), n.arg("src"), axis_of(n)
    desc = desc_of(x)
    extent = desc.shape[axis]
    start, end, step = slice(n.arg("start"), n.arg("end"), n.arg("step", 1)).indices(extent)
    src = n.spread(
        n.cast(src, desc.dtype), [*desc.shape[:axis], len(range(start, end, step)), *desc.shape[axis + 1 :]]
    )
    if start >= end:
        return n.op("Identity", x)
    if step != 1:
        return _written(n, x, src, axis, np.arange(start, end, step))
    before = [n.op("Slice", x, **box(desc.shape, [axis], [0], [start], [1]))] if start else []
    after = [n.op("Slice", x, **box(desc.shape, [axis], [end], [extent], [1]))] if end < extent else []
    parts = [*before, src, *after]
    return parts[0] if len(parts) == 1 else n.op("Concat", *parts, axis=axis)


def _written(n: AtenNode, x: Any, src: Any, axis: int, rows: np.ndarray) -> Any:
    """x with the rows of src at some positions along an axis, by choosing from either."""
    desc = desc_of(x)
    where = np.zeros(desc.shape[axis], bool)
    where[rows] = True
    source = np.zeros(desc.shape[axis], np.int64)
    source[rows] = np.arange(len(rows))
    shape = [desc.shape[axis] if i == axis else 1 for i in range(desc.rank)]
    spread = n.op("Gather", src, n.builder.constant(source), axis=axis)
    return n.op("Select", n.builder.constant(where.reshape(shape)), spread, x)


@aten("select_scatter")
def _select_scatter(n: AtenNode) -> Any:
    x, axis = n.arg("self"), axis_of(n)
    desc = desc_of(x)
    row = [*desc.shape[:axis], 1, *desc.shape[axis + 1 :]]
    src = n.shaped(n.cast(n.arg("src"), desc.dtype), row)
    return _written(n, x, src, axis, np.asarray([int(n.arg("index")) % desc.shape[axis]]))


@aten("pixel_shuffle")
def _pixel_shuffle(n: AtenNode) -> Any:
    return _pixels(n, "DepthToSpace", int(n.arg("upscale_factor")))


@aten("pixel_unshuffle")
def _pixel_unshuffle(n: AtenNode) -> Any:
    x = n.arg("self")
    *outer, c, h, w = desc_of(x).shape
    b = int(n.arg("downscale_factor"))
    split = n.shaped(x, [math.prod(outer), c, h // b, b, w // b, b])
    return n.shaped(n.turned(split, [0, 1, 3, 5, 2, 4]), n.out().shape)


def _pixels(n: AtenNode, type_: str, block: int) -> Any:
    *outer, c, h, w = desc_of(n.arg("self")).shape
    x = n.shaped(n.arg("self"), [math.prod(outer), c, h, w])
    return n.shaped(n.op(type_, x, block=block, mode="CRD"), n.out().shape)
