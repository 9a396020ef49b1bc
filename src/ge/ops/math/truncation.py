"""Converts floats to integers as the processor does, including numbers out of range.

C++ leaves these undefined, and so do the frameworks; their kernels return what the processor's instructions give:
1. int32, int64: the minimum, also for NaN.
2. Narrower types: the low bits of the int32; of the int64 for uint32.
3. uint64: negative numbers wrap around; 2**63 stands for numbers out of range.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ge.ir.types import numpy_dtype
from ge.ir.values import desc_of

__all__ = ["Emitter", "signed", "truncated", "unsigned"]


class Emitter(Protocol):
    """A node of a framework, or a builder: what emits operators."""

    def op(self, type_: str, *inputs: Any, **attrs: Any) -> Any: ...


def truncated(n: Emitter, x: Any, to: str) -> Any:
    """x converted to an integer type, element by element."""
    if to in ("int32", "int64"):
        return signed(n, x, to)
    if to == "uint64":
        return unsigned(n, x, to)
    return n.op("Cast", signed(n, x, "int64" if to == "uint32" else "int32"), to=to)


def signed(n: Emitter, x: Any, to: str) -> Any:
    """x as int32 or int64; the minimum stands for numbers out of range."""
    x = _wide(n, x)
    least = np.iinfo(numpy_dtype(to)).min
    fits = n.op("And", n.op("GreaterEqual", x, float(least)), n.op("Less", x, -float(least)))
    return n.op("Select", fits, n.op("Cast", x, to=to), np.asarray(least, numpy_dtype(to)))


def unsigned(n: Emitter, x: Any, to: str) -> Any:
    """x as uint32 or uint64, from the range of that type or of the signed type of the same size."""
    x = _wide(n, x)
    half = 2.0 ** (numpy_dtype(to).itemsize * 8 - 1)
    upper = n.op("And", n.op("GreaterEqual", x, half), n.op("Less", x, 2 * half))
    return n.op("Select", upper, n.op("Cast", x, to=to), n.op("Cast", signed(n, x, to[1:]), to=to))


def _wide(n: Emitter, x: Any) -> Any:
    """x in a type that represents the bounds."""
    return n.op("Cast", x, to="float32") if desc_of(x).dtype in ("float16", "bfloat16") else x
