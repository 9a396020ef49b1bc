"""TensorFlow's conversions of floats to integers, including numbers out of range.

1. Elements are truncated as in `truncation`, except where TensorFlow converts several at a time, which it does with all
   but a remainder at the end of a tensor:
2. int8, uint8, int16, uint16 then saturate; a number that does not fit an int32 counts as its minimum, and one that
   does not fit an int16 if float64 or float16 become uint8.
3. uint32 are converted like uint64.
A TensorFlow kernel that is divided among several threads has one such remainder per thread; here there is one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.types import FLOATS, INTS, TENSORS, numpy_dtype
from ge.ops.math.truncation import signed, truncated, unsigned
from ge.ops.plugins import Node, Results, Unsupported, plugin

__all__: list[str] = []

_DIGITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
_AT_ONCE = {"float64": 16, "float32": 32, "float16": 16, "bfloat16": 8}  # elements of a source type
_UINT32_AT_ONCE = 8
_NEW_HALF = 1700  # graphs of older versions come with other kernels for float16


@plugin(tensorflow="Cast")
def _cast(n: Node) -> Results:
    source, to = n.desc().dtype, str(n.attr("DstT"))
    if to not in TENSORS:
        raise Unsupported(f"no engine accepts {to}", "use one of the plain number types")
    if to == source:
        return n.inputs[0]  # type: ignore[return-value]
    if n.attr("Truncate", False) and _DIGITS.get(to, 64) < _DIGITS.get(source, 0):
        raise Unsupported("a conversion that cuts digits off", "convert with rounding")
    if source not in FLOATS or to not in INTS:
        return n.op("Cast", n.inputs[0], to=to)
    at_once = _at_once(n, source, to)
    together = n.desc().size // at_once * at_once
    if not together:
        return truncated(n, n.inputs[0], to)
    vectors = _limited(n, n.inputs[0], to) if to != "uint32" else unsigned(n, n.inputs[0], to)
    if together == n.desc().size:
        return vectors
    place = n.op("Reshape", n.op("Iota", shape=[n.desc().size]), shape=n.desc().shape)
    return n.op("Select", n.op("Less", place, np.int64(together)), vectors, truncated(n, n.inputs[0], to))


def _at_once(n: Node, source: str, to: str) -> int:
    """The number of elements converted at a time; more than there are if that makes no difference."""
    size = numpy_dtype(to).itemsize
    if size == 8 or to == "int32":
        return n.desc().size + 1
    if to == "uint32":
        return _UINT32_AT_ONCE
    return 8 // size if _is_old_half(n) else _AT_ONCE[source]


def _is_old_half(n: Node) -> bool:
    return n.desc().dtype == "float16" and 0 < n.version < _NEW_HALF


def _limited(n: Node, x: Any, to: str) -> Any:
    whole, info = signed(n, x, "int32"), np.iinfo(numpy_dtype(to))
    low, high = np.int32(info.min), np.int32(info.max)
    if to == "uint8" and n.desc().dtype in ("float64", "float16") and not _is_old_half(n):
        whole = n.op("Select", n.op("Less", whole, np.int32(1 << 15)), whole, low)
    return n.op("Cast", n.op("Minimum", n.op("Maximum", whole, low), high), to=to)
