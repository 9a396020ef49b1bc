"""Operators on integers, bools and text with NumPy: sizes, positions and masks of text and ragged tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ge.parsers.tensorflow.host.operators import HostNode, host, integer
from ge.parsers.tensorflow.tensor import storage_dtype

__all__: list[str] = []


def _kind(n: HostNode, name: str) -> np.dtype:
    return storage_dtype(str(n.attr(name, "int32")))


def _numbers(array: np.ndarray) -> list[int]:
    return [int(i) for i in array.reshape(-1)]


def _binary(op: str, function: Callable[[Any, Any], Any], *more: str) -> None:
    @integer(op, *more)
    def run(n: HostNode, x: np.ndarray, y: np.ndarray) -> Any:
        return function(x, y)


for _name, _function in {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
}.items():
    _binary(_name, _function)
for _name, _function in {
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
}.items():
    _binary(_name, lambda x, y, f=_function: np.asarray(f(x, y), bool))  # type: ignore[misc]


def _reduction(op: str, function: Callable[..., Any]) -> None:
    @integer(op)
    def run(n: HostNode, x: np.ndarray, axes: np.ndarray) -> Any:
        keep = bool(n.attr("keep_dims", False))
        if not x.size and op in ("Max", "Min"):
            limit = np.iinfo(x.dtype).min if op == "Max" else np.iinfo(x.dtype).max
            return function(x, axis=tuple(_numbers(axes)), keepdims=keep, initial=limit)
        return np.asarray(function(x, axis=tuple(_numbers(axes)), keepdims=keep), x.dtype)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "Max": np.max,
    "Min": np.min,
    "Sum": np.sum,
    "Prod": np.prod,
    "All": np.all,
    "Any": np.any,
}
for _name, _reduce in _REDUCTIONS.items():
    _reduction(_name, _reduce)


@integer("Identity", "StopGradient", "EnsureShape", "PlaceholderWithDefault", "Snapshot")
def _identity(n: HostNode, x: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    return x


@integer("IdentityN")
def _identities(n: HostNode, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    return inputs


@integer("Shape")
def _shape(n: HostNode, x: np.ndarray) -> np.ndarray:
    return np.array(x.shape, _kind(n, "out_type"))


@integer("Size")
def _size(n: HostNode, x: np.ndarray) -> np.ndarray:
    return np.asarray(x.size, _kind(n, "out_type"))


@integer("Rank")
def _rank(n: HostNode, x: np.ndarray) -> np.ndarray:
    return np.asarray(x.ndim, np.int32)


@integer("Cast")
def _cast(n: HostNode, x: np.ndarray) -> np.ndarray:
    return x.astype(_kind(n, "DstT"))


@integer("LogicalNot")
def _not(n: HostNode, x: np.ndarray) -> np.ndarray:
    return np.logical_not(x)


@integer("Neg")
def _negative(n: HostNode, x: np.ndarray) -> np.ndarray:
    return np.negative(x)


@integer("Range")
def _range(n: HostNode, start: np.ndarray, end: np.ndarray, step: np.ndarray) -> np.ndarray:
    return np.arange(start.item(), end.item(), step.item(), dtype=start.dtype)


@integer("Pack")
def _pack(n: HostNode, *parts: np.ndarray) -> np.ndarray:
    return np.stack(parts, int(n.attr("axis", 0)))


@integer("Unpack")
def _unpack(n: HostNode, x: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.moveaxis(x, int(n.attr("axis", 0)), 0))


@integer("ConcatV2")
def _concat(n: HostNode, *parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts[:-1], int(parts[-1]))


@integer("ExpandDims")
def _expand(n: HostNode, x: np.ndarray, axis: np.ndarray) -> np.ndarray:
    return np.expand_dims(x, int(axis.reshape(-1)[0]))


@integer("Squeeze")
def _squeeze(n: HostNode, x: np.ndarray) -> np.ndarray:
    return np.squeeze(x, tuple(n.attr("squeeze_dims") or ()) or None)


@integer("Reshape")
def _reshape(n: HostNode, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    return x.reshape(_numbers(shape))


@integer("Tile")
def _tile(n: HostNode, x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.tile(x, _numbers(counts))


@integer("BroadcastTo")
def _broadcast(n: HostNode, x: np.ndarray, shape: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x, _numbers(shape)).copy()


@integer("Fill")
def _fill(n: HostNode, shape: np.ndarray, value: np.ndarray) -> np.ndarray:
    return np.full(_numbers(shape), value.reshape(-1)[0], value.dtype)


@integer("ZerosLike", "OnesLike")
def _like(n: HostNode, x: np.ndarray) -> np.ndarray:
    if x.dtype == object:
        return np.full(x.shape, b"", object)
    return np.full(x.shape, n.op == "OnesLike", x.dtype)


@integer("Transpose")
def _transpose(n: HostNode, x: np.ndarray, order: np.ndarray) -> np.ndarray:
    return np.transpose(x, _numbers(order))


@integer("Pad", "PadV2")
def _pad(n: HostNode, x: np.ndarray, widths: np.ndarray, *value: np.ndarray) -> np.ndarray:
    fill = value[0].reshape(-1)[0] if value else (b"" if x.dtype == object else 0)
    return np.pad(x, widths.astype(int), constant_values=fill)


@integer("Select", "SelectV2")
def _select(n: HostNode, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if n.op == "Select" and condition.ndim == 1 < x.ndim:
        condition = condition.reshape(-1, *[1] * (x.ndim - 1))
    return np.where(condition, x, y)


@integer("Where")
def _where(n: HostNode, x: np.ndarray) -> np.ndarray:
    return np.argwhere(x != b"" if x.dtype == object else x).astype(np.int64)


@integer("Gather", "GatherV2")
def _gather(n: HostNode, x: np.ndarray, places: np.ndarray, *axis: np.ndarray) -> np.ndarray:
    along, shared = int(axis[0]) if axis else 0, int(n.attr("batch_dims", 0))
    if not shared:
        return np.take(x, places, axis=along)
    rows = x.reshape(-1, *x.shape[shared:])
    chosen = places.reshape(-1, *places.shape[shared:])
    made = [np.take(r, c, axis=(along % x.ndim) - shared) for r, c in zip(rows, chosen, strict=True)]
    return np.stack(made).reshape(*x.shape[:shared], *made[0].shape)


@integer("GatherNd")
def _gather_nd(n: HostNode, x: np.ndarray, places: np.ndarray) -> np.ndarray:
    return np.asarray(x[tuple(np.moveaxis(places, -1, 0))])


@integer("Cumsum")
def _cumsum(n: HostNode, x: np.ndarray, axis: np.ndarray) -> np.ndarray:
    along = int(axis)
    x = np.flip(x, along) if n.attr("reverse") else x
    sums = np.cumsum(x, along, dtype=x.dtype)
    sums = sums - x if n.attr("exclusive") else sums
    return np.flip(sums, along) if n.attr("reverse") else sums


@integer("Split")
def _split(n: HostNode, axis: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.split(x, int(n.attr("num_split")), int(axis)))


@integer("SplitV")
def _split_sizes(n: HostNode, x: np.ndarray, sizes: np.ndarray, axis: np.ndarray) -> tuple[np.ndarray, ...]:
    given = _numbers(sizes)
    rest = x.shape[int(axis)] - sum(s for s in given if s >= 0)
    ends = np.cumsum([rest if s < 0 else s for s in given])
    return tuple(np.split(x, ends[:-1], int(axis)))


@integer("Slice")
def _slice(n: HostNode, x: np.ndarray, begin: np.ndarray, size: np.ndarray) -> np.ndarray:
    pairs = zip(_numbers(begin), _numbers(size), strict=True)
    return x[tuple(slice(b, None if s < 0 else b + s) for b, s in pairs)]


@integer("StridedSlice")
def _strided(n: HostNode, x: np.ndarray, begin: np.ndarray, end: np.ndarray, step: np.ndarray) -> np.ndarray:
    def has(mask: str, place: int) -> bool:
        return bool(int(n.attr(mask, 0)) >> place & 1)

    index: list[Any] = []
    for place, (b, e, s) in enumerate(zip(_numbers(begin), _numbers(end), _numbers(step), strict=True)):
        if has("ellipsis_mask", place):
            index.append(Ellipsis)
        elif has("new_axis_mask", place):
            index.append(np.newaxis)
        elif has("shrink_axis_mask", place):
            index.append(b)
        else:
            first, last = has("begin_mask", place), has("end_mask", place)
            index.append(slice(None if first else b, None if last else e, s))
    return np.asarray(x[tuple(index)])


@integer("ScatterNd")
def _scatter(n: HostNode, places: np.ndarray, updates: np.ndarray, shape: np.ndarray) -> np.ndarray:
    made = (
        np.zeros(_numbers(shape), updates.dtype)
        if updates.dtype != object
        else np.full(_numbers(shape), b"", object)
    )
    np.add.at(made, tuple(np.moveaxis(places, -1, 0)), updates)
    return made


@integer("Unique")
@host("UniqueWithCounts", "UniqueWithCountsV2", "UniqueV2")
def _unique(n: HostNode, x: np.ndarray, *axis: np.ndarray) -> tuple[np.ndarray, ...]:
    """In the order of appearance, of elements or of slices along an axis."""
    kind = _kind(n, "out_idx")
    along = int(axis[0].reshape(-1)[0]) if axis and axis[0].size else 0
    rows = np.moveaxis(x, along, 0)
    keys = rows.tolist() if x.ndim == 1 else [row.tobytes() for row in rows]
    places: dict[Any, int] = {}
    index = [places.setdefault(key, len(places)) for key in keys]
    first = [index.index(place) for place in range(len(places))]
    results = (np.take(x, first, along), np.array(index, kind))
    if "Counts" not in n.op:
        return results
    return (*results, np.bincount(index, minlength=len(places)).astype(kind))


@integer("BroadcastArgs")
def _broadcast_args(n: HostNode, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.array(np.broadcast_shapes(tuple(x), tuple(y)), x.dtype)


@integer("LowerBound", "UpperBound")
def _bound(n: HostNode, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    side: Any = "left" if n.op == "LowerBound" else "right"
    pairs = zip(rows, values, strict=True)
    return np.stack([np.searchsorted(r, v, side) for r, v in pairs]).astype(_kind(n, "out_type"))


@integer("Bincount", "DenseBincount")
def _bincount(n: HostNode, x: np.ndarray, size: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Rows of a matrix one by one; numbers beyond the size do not count."""
    count = int(size)

    def counted(row: np.ndarray, weight: np.ndarray) -> np.ndarray:
        kept = row < count
        found = np.bincount(row[kept], weight[kept] if weight.size else None, minlength=count)
        return (found > 0 if n.attr("binary_output") else found).astype(weights.dtype)

    if x.ndim < 2:
        return counted(x.reshape(-1), weights.reshape(-1))
    spread = weights if weights.size else [weights] * len(x)
    return np.stack([counted(row, np.asarray(w)) for row, w in zip(x, spread, strict=True)])
