"""Broadcasts, reductions, rearrangements, gathers and segments of the vector DSL."""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from tbe import expr as e
from tbe.dsl.elementwise import _tensor
from tbe.dsl.tensor import Expr, IterVar, Tensor, as_expr, dsl_function, dtype_name, integers, number
from tbe.dtypes import DTYPES

__all__ = [
    "broadcast",
    "concat",
    "gather",
    "inplace_add",
    "inplace_sub",
    "inplace_update",
    "pad",
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "reshape",
    "set_value",
    "slice",
    "split",
    "split_compute_com",
    "sum",
    "transpose",
    "tuple_sum",
    "unsorted_segment_max",
    "unsorted_segment_mean",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_sum",
]


@dsl_function
def broadcast(var: Any, shape: Sequence[int], output_dtype: str | None = None) -> Any:
    """Repeat a tensor, or a number, over a shape.

    >>> import numpy as np, tbe
    >>> x = tbe.placeholder((2, 1), "int32")
    >>> tbe.evaluate([broadcast(x, (2, 2))], {x: np.array([[1], [2]], np.int32)})[0].tolist()
    [[1, 1], [2, 2]]
    """
    if not isinstance(var, e.Tensor):
        dtype = dtype_name(output_dtype or getattr(var, "dtype", None) or _own_type(var))
        return e.broadcast_to(e.constant(number(var, dtype), dtype), integers(shape))
    wide = e.broadcast_to(var, integers(shape))
    return wide if output_dtype is None else e.cast(wide, dtype_name(output_dtype))


def _own_type(value: Any) -> str:
    return "int32" if isinstance(value, int) and not isinstance(value, bool) else "float32"


# -- reductions -----------------------------------------------------------------------------------------------


def _axes(axis: Any, rank: int) -> list[int]:
    axes = integers(axis)
    for a in axes:
        if not -rank <= a < rank:
            raise ValueError(f"axis {a} of a tensor of rank {rank}")
    return sorted({a % rank for a in axes})


def _reduced(op: str, x: Any, axis: Any, keepdims: bool) -> e.Tensor:
    x = _tensor(x)
    return e.reduce(op, x, _axes(axis, len(x.shape)), bool(keepdims))


@dsl_function
def reduce_sum(raw_tensor: Any, axis: Any, keepdims: bool = False) -> Any:
    """The sum over some axes; 16-bit floats are added in float32 and rounded once."""
    return _reduced("sum", raw_tensor, axis, keepdims)


sum = reduce_sum


@dsl_function
def tuple_sum(input_tensor_list: Any, axis: Any, keepdims: bool = False) -> Any:
    """The sums of several tensors over the same axes."""
    return tuple(_reduced("sum", x, axis, keepdims) for x in input_tensor_list)


@dsl_function
def reduce_mean(raw_tensor: Any, axis: Any, keepdims: bool = False) -> Any:
    """The mean over some axes; integers are divided towards zero."""
    x = _tensor(raw_tensor)
    axes = _axes(axis, len(x.shape))
    count = math.prod(x.shape[a] for a in axes)
    wide = e.cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x
    mean = e.binary("div", e.reduce("sum", wide, axes, bool(keepdims)), e.constant(count, wide.dtype))
    return e.cast(mean, x.dtype)


@dsl_function
def reduce_max(raw_tensor: Any, axis: Any, keepdims: bool = False, priority_flag: Any = False) -> Any:
    """The maximum over some axes; NaN where there is one."""
    return _reduced("max", raw_tensor, axis, keepdims)


@dsl_function
def reduce_min(raw_tensor: Any, axis: Any, keepdims: bool = False, priority_flag: Any = False) -> Any:
    """The minimum over some axes; NaN where there is one."""
    return _reduced("min", raw_tensor, axis, keepdims)


@dsl_function
def reduce_prod(raw_tensor: Any, axis: Any, keepdims: bool = False) -> Any:
    """The product over some axes."""
    return _reduced("prod", raw_tensor, axis, keepdims)


@dsl_function
def reduce_any(raw_tensor: Any, axis: Any, keepdims: bool = False) -> Any:
    """Whether any element along some axes is not 0."""
    return _reduced("any", e.cast(_tensor(raw_tensor), "bool"), axis, keepdims)


@dsl_function
def reduce_all(raw_tensor: Any, axis: Any, keepdims: bool = False) -> Any:
    """Whether no element along some axes is 0."""
    return _reduced("all", e.cast(_tensor(raw_tensor), "bool"), axis, keepdims)


# -- rearrangements -------------------------------------------------------------------------------------------


@dsl_function
def concat(raw_tensors: Any, axis: int) -> Any:
    """Tensors one after another along an axis."""
    return e.concat([_tensor(x) for x in raw_tensors], int(axis))


@dsl_function
def split(raw_tensor: Any, split_dim: int, size_splits: Any) -> Any:
    """Parts of a tensor along an axis, with the given extents, or as many equal ones as a number says."""
    x = _tensor(raw_tensor)
    axis = _axes(split_dim, len(x.shape))[0]
    if isinstance(size_splits, Sequence):
        sizes = integers(size_splits)
    else:
        count = int(size_splits)
        if count < 1 or x.shape[axis] % count:
            raise ValueError(f"{x.shape[axis]} elements in {count} equal parts")
        sizes = [x.shape[axis] // count] * count
    if builtins.sum(sizes) != x.shape[axis]:
        raise ValueError(f"parts of {sizes} do not make {x.shape[axis]}")
    starts = itertools.accumulate([0, *sizes[:-1]])
    return [_part(x, axis, start, size) for start, size in zip(starts, sizes, strict=True)]


split_compute_com = split


def _part(x: e.Tensor, axis: int, start: int, size: int) -> e.Tensor:
    starts = [start if a == axis else 0 for a in range(len(x.shape))]
    shape = [size if a == axis else d for a, d in enumerate(x.shape)]
    return e.slice(x, starts, [1] * len(shape), shape)


@dsl_function
def slice(tensor: Any, begin: Sequence[int], end: Sequence[int], stride: Sequence[int] | None = None) -> Any:
    """The elements from `begin` to before `end`, every `stride`-th one."""
    x = _tensor(tensor)
    steps = integers(stride) if stride is not None else [1] * len(x.shape)
    ranges = [
        range(*builtins.slice(int(b), int(s), step).indices(d))
        for d, b, s, step in zip(x.shape, begin, end, steps, strict=True)
    ]
    return e.slice(x, [r.start for r in ranges], steps, [len(r) for r in ranges])


@dsl_function
def transpose(tensor: Any, axes: Sequence[int]) -> Any:
    """Dimensions reordered as numpy.transpose does."""
    return e.transpose(_tensor(tensor), integers(axes))


@dsl_function
def reshape(tensor: Any, new_shape: Sequence[int]) -> Any:
    """The same elements under another shape."""
    return e.reshape(_tensor(tensor), integers(new_shape))


@dsl_function
def pad(tensor: Any, paddings: Any, pad_mode: str = "constant", constant_values: Any = 0) -> Any:
    """Surround a tensor: paddings are (before, after) of each dimension.

    Modes: "constant", "edge", "reflect", "symmetric", as numpy.pad has them.
    """
    x = _tensor(tensor)
    widths = [(int(a), int(b)) for a, b in paddings]
    if len(widths) != len(x.shape):
        raise ValueError(f"{len(widths)} paddings for a tensor of rank {len(x.shape)}")
    if pad_mode == "constant":
        return e.pad(x, [a for a, _ in widths], [b for _, b in widths], number(constant_values, x.dtype))
    if pad_mode not in _BORDERS:
        raise ValueError(f"mode {pad_mode!r} is not one of constant, {', '.join(_BORDERS)}")
    border = _BORDERS[pad_mode]
    shape = [d + a + b for d, (a, b) in zip(x.shape, widths, strict=True)]
    for d, width in zip(x.shape, widths, strict=True):
        if pad_mode != "edge" and max(width) > d - (pad_mode == "reflect"):
            raise ValueError(f"{pad_mode} padding {width} of a dimension of {d}")
    return e.compute(
        shape,
        lambda *at: x[tuple(border(i - a, d) for i, (a, _), d in zip(at, widths, x.shape, strict=True))],
    )


def _symmetric(i: Any, d: int) -> Any:
    i = e.select(i < 0, -1 - i, i)
    return e.select(i < d, i, 2 * d - 1 - i)


_BORDERS: dict[str, Callable[[Any, int], Any]] = {
    "edge": lambda i, d: i,  # reads outside a tensor give its edge
    "reflect": lambda i, d: (d - 1) - e.unary("abs", e.unary("abs", i) - (d - 1)),
    "symmetric": _symmetric,
}


@dsl_function
def gather(params: Any, indices: Any, axis: int = 0, batch_dims: int = 0) -> Any:
    """Slices of a tensor along an axis, chosen by an index tensor."""
    x = _tensor(params)
    return e.take(x, _tensor(indices), _axes(axis, len(x.shape))[0], int(batch_dims))


def set_value(tensor: Any, condition: Any, value: Any) -> Any:
    """The tensor with `value` (a number, a tensor or a function of the indices) where `condition(*indices)` holds.

    >>> from tbe import tvm
    >>> x = tvm.placeholder((4,), "float32", "x")
    >>> set_value(x, lambda i: i < 2, 0.0)
    Tensor('set_value', float32[4])
    """
    source = tensor if isinstance(tensor, Tensor) else Tensor(tensor)
    axes = [IterVar(d) for d in source.expression.shape]
    chosen = value(*axes) if callable(value) and not isinstance(value, Tensor) else value
    chosen = chosen(*axes) if isinstance(chosen, Tensor) else as_expr(chosen, source.dtype)
    holds = condition(*axes)
    if not isinstance(holds, Expr) or holds.dtype != "bool":
        raise TypeError("set_value: the condition must be a comparison of indices")
    body = e.select(holds.scalar, e.cast(chosen.scalar, source.dtype), source(*axes).scalar)
    variables = tuple(v.scalar for v in axes if isinstance(v.scalar, e.Var))
    made = e.from_scalar(source.expression.shape, variables, body)
    return Tensor(made, "set_value", "set_value", (source,)) if isinstance(tensor, Tensor) else made


# -- segments -------------------------------------------------------------------------------------------------


def _vector(values: Sequence[int], dtype: str) -> e.Tensor:
    """A vector of given integers, as a balanced tree of choices by position."""
    position = e.iota((len(values),), 0, "int32")

    def part(low: int, high: int) -> e.Tensor:
        if all(v == values[low] for v in values[low:high]):
            return e.constant(values[low], dtype)
        middle = (low + high) // 2
        before = e.binary("lt", position, e.constant(middle, "int32"))
        return e.select(before, part(low, middle), part(middle, high))

    return e.broadcast_to(part(0, len(values)), (len(values),))


def _row_numbers(ids: Any, count: int) -> e.Tensor:
    if isinstance(ids, e.Tensor):
        numbers = e.reshape(ids, (ids.size,))
    else:
        numbers = _vector(integers(ids), "int32")
    if numbers.size != count:
        raise ValueError(f"{numbers.size} segment ids for {count} rows")
    return numbers


def _segments(op: str, tensor: Any, segment_ids: Any, num_segments: int, init_value: Any) -> e.Tensor:
    x = _tensor(tensor)
    rows, inner = x.shape[0], x.shape[1:]
    ids = _row_numbers(segment_ids, rows)
    shape = (rows, int(num_segments), *inner)
    along = (1,) * len(inner)
    mask = e.binary(
        "eq", e.reshape(ids, (rows, 1, *along)), e.iota((1, int(num_segments), *along), 1, ids.dtype)
    )
    values = e.broadcast_to(e.reshape(x, (rows, 1, *inner)), shape)
    neutral = e.constant(_NEUTRAL[op](DTYPES[x.dtype]), x.dtype)
    found = e.reduce(op, e.select(mask, values, neutral), 0)
    some = e.reduce("any", e.broadcast_to(mask, shape), 0)
    return e.select(some, found, e.constant(number(init_value, x.dtype, "init_value"), x.dtype))


_NEUTRAL: dict[str, Callable[[Any], Any]] = {
    "sum": lambda d: 0,
    "prod": lambda d: 1,
    "max": lambda d: d.min,
    "min": lambda d: d.max,
}


@dsl_function
def unsorted_segment_sum(tensor: Any, segment_ids: Any, num_segments: int, init_value: Any = 0) -> Any:
    """The sum of the rows of each segment; `init_value` where a segment has none."""
    return _segments("sum", tensor, segment_ids, num_segments, init_value)


@dsl_function
def unsorted_segment_prod(tensor: Any, segment_ids: Any, num_segments: int, init_value: Any = 0) -> Any:
    """The product of the rows of each segment; `init_value` where a segment has none."""
    return _segments("prod", tensor, segment_ids, num_segments, init_value)


@dsl_function
def unsorted_segment_max(tensor: Any, segment_ids: Any, num_segments: int, init_value: Any = 0) -> Any:
    """The maximum of the rows of each segment; `init_value` where a segment has none."""
    return _segments("max", tensor, segment_ids, num_segments, init_value)


@dsl_function
def unsorted_segment_min(tensor: Any, segment_ids: Any, num_segments: int, init_value: Any = 0) -> Any:
    """The minimum of the rows of each segment; `init_value` where a segment has none."""
    return _segments("min", tensor, segment_ids, num_segments, init_value)


@dsl_function
def unsorted_segment_mean(tensor: Any, segment_ids: Any, num_segments: int, init_value: Any = 0) -> Any:
    """The mean of the rows of each segment; `init_value` where a segment has none."""
    x = _tensor(tensor)
    wide = e.cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x
    ones = e.broadcast_to(e.constant(1, wide.dtype), wide.shape)
    total = _segments("sum", wide, segment_ids, num_segments, 0)
    count = _segments("sum", ones, segment_ids, num_segments, 0)
    none = e.binary("eq", count, e.constant(0, wide.dtype))
    mean = e.binary("div", total, e.binary("max", count, e.constant(1, wide.dtype)))
    return e.cast(e.select(none, e.constant(number(init_value, wide.dtype), wide.dtype), mean), x.dtype)


# -- rows changed in place ------------------------------------------------------------------------------------


def _rounds(ids: Sequence[int]) -> list[dict[int, int]]:
    """The updates {row: number of its value} in rounds in which every row occurs at most once."""
    rounds: list[dict[int, int]] = []
    for position, row in enumerate(ids):
        place = next((r for r in rounds if row not in r), None)
        if place is None:
            rounds.append(place := {})
        place[row] = position
    return rounds


def _inplace(lhs: Any, ids: Any, rhs: Any, join: Callable[[e.Tensor, e.Tensor], e.Tensor]) -> e.Tensor:
    x, values = _tensor(lhs), _tensor(rhs)
    rows = integers(ids)
    if values.shape != (len(rows), *x.shape[1:]):
        raise ValueError(f"{len(rows)} rows of {x.shape[1:]} expected, got {values.shape}")
    if any(not 0 <= r < x.shape[0] for r in rows):
        raise ValueError(f"rows {rows} of a tensor with {x.shape[0]}")
    flat = (1,) * (len(x.shape) - 1)
    for chosen in _rounds(rows):
        which = _vector([chosen.get(r, -1) for r in range(x.shape[0])], "int32")
        taken = e.take(values, e.binary("max", which, e.constant(0, "int32")), 0)
        hit = e.reshape(e.binary("ge", which, e.constant(0, "int32")), (x.shape[0], *flat))
        x = e.select(hit, join(x, taken), x)
    return x


@dsl_function
def inplace_add(lhs: Any, inplace_ids: Any, rhs: Any) -> Any:
    """lhs with the rows of rhs added to the rows named by the ids, repeated ones too."""
    return _inplace(lhs, inplace_ids, rhs, lambda a, b: e.binary("add", a, b))


@dsl_function
def inplace_sub(lhs: Any, inplace_ids: Any, rhs: Any) -> Any:
    """lhs with the rows of rhs taken from the rows named by the ids, repeated ones too."""
    return _inplace(lhs, inplace_ids, rhs, lambda a, b: e.binary("sub", a, b))


@dsl_function
def inplace_update(lhs: Any, inplace_ids: Any, rhs: Any) -> Any:
    """lhs with the rows named by the ids replaced by those of rhs; of repeated ones the last counts."""
    return _inplace(lhs, inplace_ids, rhs, lambda a, b: b)
