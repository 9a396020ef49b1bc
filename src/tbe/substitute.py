"""Rebuilds an expression over other inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tbe import expr as e
from tbe.order import postorder

__all__ = ["inputs_first", "substitute"]


def substitute(outputs: Sequence[e.Tensor], replacements: Mapping[e.Tensor, e.Tensor]) -> list[e.Tensor]:
    """The same computation with some of its tensors replaced by others of the same shape and type.

    >>> import tbe
    >>> x, y = tbe.placeholder((2,), "float32"), tbe.placeholder((2,), "float32")
    >>> (z,) = substitute([tbe.unary("exp", x)], {x: tbe.unary("neg", y)})
    >>> z.inputs[0].op
    'neg'
    """
    made: dict[int, e.Tensor] = {}
    for old, new in replacements.items():
        if old.shape != new.shape or old.dtype != new.dtype:
            raise ValueError(f"{new!r} cannot stand for {old!r}")
        made[id(old)] = new
    for tensor in inputs_first(outputs, made):
        inputs = [made[id(x)] for x in tensor.inputs]
        same = all(a is b for a, b in zip(inputs, tensor.inputs, strict=True))
        made[id(tensor)] = tensor if same else _REBUILD[type(tensor)](tensor, inputs)
    return [made[id(t)] for t in outputs]


def inputs_first(outputs: Sequence[e.Tensor], known: Iterable[int] = ()) -> list[e.Tensor]:
    """The tensors that `outputs` depend on, including themselves, in topological order."""
    return postorder(outputs, lambda tensor: tensor.inputs, known)


def _compute(t: e.Compute, inputs: list[e.Tensor]) -> e.Tensor:
    tensors = {id(old): new for old, new in zip(t.inputs, inputs, strict=True)}
    made: dict[int, e.Scalar] = {id(v): v for v in t.vars}

    def rebuilt(s: e.Scalar) -> e.Scalar:
        found = made.get(id(s))
        if found is not None:
            return found
        args = tuple(rebuilt(a) for a in s.args)
        if isinstance(s, e.Load):
            found = e.Load(tensors[id(s.tensor)], args)
        elif isinstance(s, e.ScalarOp):
            found = e.ScalarOp(s.op, args, s.dtype)
        else:
            found = s
        made[id(s)] = found
        return found

    return e.from_scalar(t.shape, t.vars, rebuilt(t.body))


def _pad(t: e.Pad, x: list[e.Tensor]) -> e.Tensor:
    return e.Pad(x[0], t.low, t.shape, t.value)


_REBUILD: dict[type, Callable[[Any, list[e.Tensor]], e.Tensor]] = {
    e.Unary: lambda t, x: e.Unary(t.op, x[0], t.dtype),
    e.Binary: lambda t, x: e.Binary(t.op, x[0], x[1], t.dtype),
    e.Select: lambda t, x: e.Select(t.shape, t.dtype, tuple(x)),
    e.Cast: lambda t, x: e.Cast(t.shape, t.dtype, tuple(x)),
    e.Broadcast: lambda t, x: e.Broadcast(t.shape, t.dtype, tuple(x)),
    e.Reshape: lambda t, x: e.Reshape(t.shape, t.dtype, tuple(x)),
    e.Transpose: lambda t, x: e.Transpose(x[0], t.perm),
    e.Slice: lambda t, x: e.Slice(x[0], t.starts, t.steps, t.shape),
    e.Pad: _pad,
    e.Concat: lambda t, x: e.Concat(tuple(x), t.axis, t.shape),
    e.Take: lambda t, x: e.Take(x[0], x[1], t.axis, t.batch_dims, t.shape),
    e.Compute: _compute,
    e.Reduce: lambda t, x: e.Reduce(t.op, x[0], t.axes, t.keepdims, t.last, t.shape, t.dtype),
    e.Scan: lambda t, x: e.Scan(t.op, x[0], t.axis, t.exclusive, t.reverse),
}
