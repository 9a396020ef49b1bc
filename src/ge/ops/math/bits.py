"""Operators on the bits of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype
from ge.ops.plugins import Node, Results, Unsupported, plugin

_PATTERNS = (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F)
_SUMMED = 0x0101010101010101
_SIGNED = {"int8": "uint8", "int16": "uint16", "int32": "uint32", "int64": "uint64"}
_INTEGER = {"float32": "int32", "float64": "int64"}


@plugin(tensorflow="PopulationCount")
def _population_count(n: Node) -> Results:
    """The number of one bits: counted in pairs, then in fours, in bytes, and summed by a multiplication."""
    dtype = _SIGNED.get(n.desc().dtype, n.desc().dtype)
    kind = numpy_dtype(dtype)
    bits = 8 * kind.itemsize
    mask = (1 << bits) - 1
    x: Any = n.inputs[0] if dtype == n.desc().dtype else n.op("BitCast", n.inputs[0], to=dtype)

    def low(value: Any, pattern: int, shift: int = 0) -> Any:
        moved = n.op("ShiftRight", value, np.asarray(shift, kind)) if shift else value
        return n.op("BitwiseAnd", moved, np.asarray(pattern & mask, kind))

    for power, pattern in enumerate(_PATTERNS):
        x = n.op("Add", low(x, pattern), low(x, pattern, 1 << power))
    if bits > 8:
        x = n.op("ShiftRight", n.op("Mul", x, np.asarray(_SUMMED & mask, kind)), np.asarray(bits - 8, kind))
    return x if dtype == "uint8" else n.op("Cast", x, to="uint8")


@plugin(tensorflow="NextAfter")
def _next_after(n: Node) -> Results:
    """The next representable number after x towards y: one step in the order of bit patterns."""
    dtype = n.desc().dtype
    if dtype not in _INTEGER:
        raise Unsupported(f"NextAfter of {dtype}", "use float32 or float64")
    to = _INTEGER[dtype]
    shape = list(np.broadcast_shapes(n.desc(0).shape, n.desc(1).shape))
    x, y = (n.op("BroadcastTo", v, shape=shape) for v in n.inputs[:2])
    bits, one = n.op("BitCast", x, to=to), np.asarray(1, numpy_dtype(to))
    away = n.op("Equal", n.op("Less", x, y), n.op("Greater", x, 0.0))
    stepped = n.op("BitCast", n.op("Select", away, n.op("Add", bits, one), n.op("Sub", bits, one)), to=dtype)
    least = n.op("BitCast", n.builder.constant(np.full(shape, 1, numpy_dtype(to))), to=dtype)
    from_zero = n.op("Select", n.op("Greater", y, 0.0), least, n.op("Neg", least))
    moved = n.op("Select", n.op("Equal", x, 0.0), from_zero, stepped)
    unknown = n.op("Or", n.op("IsNan", x), n.op("IsNan", y))
    return n.op("Select", unknown, n.op("Add", x, y), n.op("Select", n.op("Equal", x, y), y, moved))
