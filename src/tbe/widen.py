"""Widens a computation to double precision as the reference for a kernel's error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tbe import expr as e
from tbe.dtypes import DTYPES
from tbe.substitute import inputs_first

__all__ = ["widened"]

WIDE = "float64"


def widened(inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor]) -> tuple[list[e.Tensor], list[e.Tensor]]:
    """Inputs and outputs with every float type replaced by float64; casts between float types disappear.

    >>> import tbe
    >>> x = tbe.placeholder((2,), "float16")
    >>> _, (y,) = widened([x], [tbe.cast(tbe.unary("exp", tbe.cast(x, "float32")), "float16")])
    >>> y
    Unary(float64[2])
    """
    made: dict[int, e.Tensor] = {}
    for tensor in inputs_first([*inputs, *outputs]):
        made[id(tensor)] = _REBUILD[type(tensor)](tensor, [made[id(x)] for x in tensor.inputs])
    return [made[id(t)] for t in inputs], [made[id(t)] for t in outputs]


def _wide(dtype: str) -> str:
    return WIDE if DTYPES[dtype].is_float else dtype


def _compute(t: e.Compute, inputs: list[e.Tensor]) -> e.Tensor:
    tensors = {id(old): new for old, new in zip(t.inputs, inputs, strict=True)}
    made: dict[int, e.Scalar] = {id(v): v for v in t.vars}

    def rebuilt(s: e.Scalar) -> e.Scalar:
        if id(s) not in made:
            made[id(s)] = _scalar(s, [rebuilt(a) for a in s.args], tensors)
        return made[id(s)]

    return e.from_scalar(t.shape, t.vars, rebuilt(t.body))


def _scalar(s: e.Scalar, args: list[e.Scalar], tensors: dict[int, e.Tensor]) -> e.Scalar:
    if isinstance(s, e.Const):
        return e.Const(s.value, _wide(s.dtype))
    if isinstance(s, e.Load):
        return e.Load(tensors[id(s.tensor)], tuple(args))
    assert isinstance(s, e.ScalarOp)
    if s.op == "cast":
        return e.cast(args[0], _wide(s.dtype))
    return e.ScalarOp(s.op, tuple(args), _wide(s.dtype))


_REBUILD: dict[type, Callable[[Any, list[e.Tensor]], e.Tensor]] = {
    e.Placeholder: lambda t, x: e.placeholder(t.shape, _wide(t.dtype), t.name),
    e.Constant: lambda t, x: e.Constant(t.value, _wide(t.dtype)),
    e.Iota: lambda t, x: e.iota(t.shape, t.axis, _wide(t.dtype)),
    e.Unary: lambda t, x: e.unary(t.op, x[0]),
    e.Binary: lambda t, x: e.binary(t.op, x[0], x[1]),
    e.Select: lambda t, x: e.select(*x),
    e.Cast: lambda t, x: e.cast(x[0], _wide(t.dtype)),
    e.Broadcast: lambda t, x: e.broadcast_to(x[0], t.shape),
    e.Reshape: lambda t, x: e.reshape(x[0], t.shape),
    e.Transpose: lambda t, x: e.transpose(x[0], t.perm),
    e.Slice: lambda t, x: e.slice(x[0], t.starts, t.steps, t.shape),
    e.Pad: lambda t, x: e.Pad(x[0], t.low, t.shape, t.value),
    e.Concat: lambda t, x: e.concat(x, t.axis),
    e.Take: lambda t, x: e.take(x[0], x[1], t.axis, t.batch_dims),
    e.Compute: _compute,
    e.Reduce: lambda t, x: e.reduce(t.op, x[0], t.axes, t.keepdims, last=t.last),
    e.Scan: lambda t, x: e.scan(t.op, x[0], t.axis, t.exclusive, t.reverse),
}
