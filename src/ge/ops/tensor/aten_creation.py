"""ATen: tensor creation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge.ir.types import FLOATS, numpy_dtype
from ge.ops.aten import AtenNode, aten
from ge.ops.plugins import Unsupported
from ge.ops.tensor.creation import MAX_TABLE


@aten("full", "full_like", "new_full")
def _full(n: AtenNode) -> Any:
    value = n.arg("fill_value")
    if isinstance(value, (bool, int, float)):
        return n.filled(value, n.out())
    raise Unsupported("a tensor filled with a computed number")


@aten("zeros", "zeros_like", "new_zeros", "zero", "empty", "empty_like", "new_empty", "empty_strided", "empty_permuted",
      "new_empty_strided")  # fmt: skip
def _zeros(n: AtenNode) -> Any:
    return n.filled(0, n.out())


@aten("ones", "ones_like", "new_ones")
def _ones(n: AtenNode) -> Any:
    return n.filled(1, n.out())


@aten("scalar_tensor")
def _scalar(n: AtenNode) -> Any:
    return n.filled(n.arg("s"), n.out())


@aten("arange.default", "arange.start", "arange.start_step")
def _arange(n: AtenNode) -> Any:
    out = n.out()
    start, step = n.arg("start", 0), n.arg("step", 1)
    return _row(n, start, step, out.shape[0], out.dtype)


@aten("prims.iota")
def _iota(n: AtenNode) -> Any:
    return _row(n, n.arg("start"), n.arg("step"), int(n.arg("length")), n.out().dtype)


def _row(n: AtenNode, start: Any, step: Any, size: int, dtype: str) -> Any:
    if size > MAX_TABLE:
        raise Unsupported(f"a row of {size} numbers")
    wide = np.float64 if dtype in FLOATS else np.int64
    return n.builder.constant((np.arange(size, dtype=wide) * step + start).astype(numpy_dtype(dtype)))


@aten("linspace.default")
def _linspace(n: AtenNode) -> Any:
    """Counted from both ends, as the framework does, so that both are exact."""
    out = n.out()
    start, end, steps = float(n.arg("start")), float(n.arg("end")), out.shape[0]
    if out.dtype not in FLOATS or steps > MAX_TABLE:
        raise Unsupported(f"a line of {out}")
    if steps < 2:
        return n.filled(start, out)
    kind: Any = np.float64 if out.dtype == "float64" else np.float32
    step = kind((end - start) / (steps - 1))
    places = np.arange(steps)
    low = kind(start) + step * places.astype(kind)
    high = kind(end) - step * (steps - 1 - places).astype(kind)
    return n.builder.constant(np.where(places < steps // 2, low, high).astype(numpy_dtype(out.dtype)))


@aten("eye")
def _eye(n: AtenNode) -> Any:
    out = n.out()
    return n.op("Eye", shape=list(out.shape), dtype=out.dtype)


@aten("tril_indices", "triu_indices")
def _triangle_indices(n: AtenNode) -> Any:
    rows, columns, offset = int(n.arg("row")), int(n.arg("col")), int(n.arg("offset", 0))
    find = np.tril_indices if n.type.startswith("tril") else np.triu_indices
    found = np.stack(find(rows, offset, columns))
    if math.prod(found.shape) > MAX_TABLE:
        raise Unsupported("a large table of positions")
    return n.builder.constant(found.astype(numpy_dtype(n.out().dtype)))
