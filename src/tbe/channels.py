"""Elementwise work over a short last dimension, such as colours: merges several positions of it into one long row.

A tensor (positions, 3) with a vector of 3 is the same memory as (positions / 16, 48) with that vector repeated 16
times, which fills whole vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tbe import expr as e
from tbe.substitute import inputs_first

__all__ = ["long_rows"]

REPEAT = 16  # positions merged into one row
SHORT = range(2, 16)  # lengths of a last dimension that is too short for vectors
_ELEMENTWISE = (e.Unary, e.Binary, e.Select, e.Cast, e.Broadcast)


def long_rows(
    inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor]
) -> tuple[list[e.Tensor], list[e.Tensor]] | None:
    """The same computation on the same memory with long rows; None if that does not apply.

    >>> import tbe
    >>> x, c = tbe.placeholder((8, 8, 3), "uint8"), tbe.placeholder((3,), "float32")
    >>> long_rows([x, c], [tbe.cast(x, "float32") * c])[1]
    [Binary(float32[4, 48])]
    """
    shape = outputs[0].shape
    if len(shape) < 2 or shape[-1] not in SHORT:
        return None
    channels, positions = shape[-1], math.prod(shape[:-1])
    if positions % REPEAT or positions < 4 * REPEAT or any(t.shape != shape for t in outputs):
        return None
    order = inputs_first([*inputs, *outputs])
    if not all(_fits(t, shape) for t in order):
        return None
    if not any(isinstance(t, e.Placeholder) and t.size == channels for t in order):
        return None
    long = (positions // REPEAT, REPEAT * channels)
    made: dict[int, e.Tensor] = {}
    read: dict[int, e.Tensor] = {}
    for t in order:
        if isinstance(t, e.Placeholder):
            read[id(t)] = e.placeholder(long if t.shape == shape else t.shape, t.dtype, t.name)
            made[id(t)] = _repeated(read[id(t)], channels) if t.size == channels else _plain(read[id(t)])
        elif isinstance(t, e.Constant):
            made[id(t)] = t
        else:
            made[id(t)] = _REBUILD[type(t)](t, [made[id(x)] for x in t.inputs])
    return [read[id(t)] for t in inputs], [e.broadcast_to(made[id(t)], long) for t in outputs]


def _fits(t: e.Tensor, shape: e.Shape) -> bool:
    """True if a tensor has the full shape, one value per channel, or one value."""
    kind = isinstance(t, (e.Placeholder, e.Constant, *_ELEMENTWISE))
    by_channel = t.size == shape[-1] and t.shape[-1:] == shape[-1:]
    return kind and (t.shape == shape or by_channel or t.size == 1)


def _repeated(x: e.Tensor, channels: int) -> e.Tensor:
    flat = e.reshape(x, (channels,))
    return e.compute((REPEAT * channels,), lambda i: flat[i % channels])


def _plain(x: e.Tensor) -> e.Tensor:
    return e.reshape(x, ()) if x.size == 1 else x


_REBUILD: dict[type, Callable[[Any, list[e.Tensor]], e.Tensor]] = {
    e.Unary: lambda t, x: e.unary(t.op, x[0]),
    e.Binary: lambda t, x: e.binary(t.op, x[0], x[1]),
    e.Select: lambda t, x: e.select(*x),
    e.Cast: lambda t, x: e.cast(x[0], t.dtype),
    e.Broadcast: lambda t, x: x[0],
}
