"""Accumulators: the values that reductions and scans carry, and how elements and accumulators are combined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tbe import convert, vector_math
from tbe.dtypes import DTYPES
from tbe.ir import Builder, Value
from tbe.lower import Reduction, Running

__all__ = [
    "accumulate",
    "combine",
    "components",
    "flat",
    "horizontal",
    "initial",
    "neutral",
    "position_type",
    "prefix",
    "result",
    "tree",
]


def neutral(op: str, dtype: str) -> float | int | bool:
    kind = DTYPES[dtype]
    if op in ("sum", "any"):
        return 0.0 if kind.is_float else 0
    if op in ("prod", "all"):
        return 1.0 if kind.is_float else 1
    return kind.min if op in ("max", "argmax") else kind.max


def position_type(r: Reduction) -> str:
    return "i32" if r.extent < 1 << 30 else "i64"


def components(r: Reduction) -> list[str]:
    """The types of the accumulators of a reduction."""
    value = convert.register_type(r.dtype)
    return [value, position_type(r)] if r.op in ("argmax", "argmin") else [value]


def initial(b: Builder, r: Reduction, lanes: int) -> list[Value]:
    kinds = components(r)
    first = b.const(kinds[0], lanes, neutral(r.op, r.dtype))
    if len(kinds) == 1:
        return [first]
    return [first, b.const(kinds[1], lanes, -1 if r.last else r.extent)]


def accumulate(b: Builder, op: str, total: Value, x: Value, dtype: str) -> Value:
    kind = DTYPES[dtype]
    if op == "sum":
        return b.op("fadd contract" if kind.is_float else "add", total, x)
    if op == "prod":
        return b.op("fmul contract" if kind.is_float else "mul", total, x)
    if op in ("any", "all"):
        return b.op("or" if op == "any" else "and", total, x)
    if kind.is_float:
        return (vector_math.float_max if op == "max" else vector_math.float_min)(b, x, total)
    return b.intrinsic(("s" if kind.kind == "int" else "u") + op, x, total)


def combine(b: Builder, r: Reduction, total: Sequence[Value], x: Sequence[Value]) -> list[Value]:
    """Accumulate one more element (or other accumulators)."""
    if len(total) == 1:
        return [accumulate(b, r.op, total[0], x[0], r.dtype)]
    best, best_at = total
    value, at = x
    kind = DTYPES[r.dtype]
    greater = r.op == "argmax"
    if kind.is_float:
        better = b.fcmp("ogt" if greater else "olt", value, best)
        nan, best_nan = b.fcmp("uno", value, value), b.fcmp("uno", best, best)
        better = b.op("or", better, b.op("and", nan, b.op("xor", best_nan, b.like(best_nan, True))))
        same = b.op("or", b.fcmp("oeq", value, best), b.op("and", nan, best_nan))
    else:
        sign = "s" if kind.kind == "int" else "u"
        better = b.icmp(sign + ("gt" if greater else "lt"), value, best)
        same = b.icmp("eq", value, best)
    nearer = b.icmp("sgt" if r.last else "slt", at, best_at)
    take = b.op("or", better, b.op("and", same, nearer))
    return [b.select(take, value, best), b.select(take, at, best_at)]


def tree(b: Builder, r: Reduction, rows: list[list[Value]]) -> list[Value]:
    while len(rows) > 1:
        paired = [combine(b, r, rows[i], rows[i + 1]) for i in range(0, len(rows) - 1, 2)]
        rows = paired + rows[len(rows) - len(rows) % 2 :]
    return rows[0]


def horizontal(b: Builder, r: Reduction, parts: list[Value]) -> list[Value]:
    """Combine all lanes into one."""
    while parts[0].lanes > 1:
        half = parts[0].lanes // 2
        low = [b.shuffle(p, None, range(half)) for p in parts]
        high = [b.shuffle(p, None, range(half, 2 * half)) for p in parts]
        parts = combine(b, r, low, high)
    return parts


def result(b: Builder, r: Reduction, parts: Sequence[Value]) -> Value:
    """The value of a finished reduction, as defined by its node."""
    if len(parts) == 1:
        return convert.rounded(b, parts[0], r.dtype) if r.op in ("sum", "prod") else parts[0]
    return parts[1] if parts[1].elem == "i64" else b.convert("sext", parts[1], "i64")


def prefix(b: Builder, r: Running, before: Value, x: Value) -> tuple[Value, Value]:
    """The total after a vector of elements, and the running values in its lanes."""
    lanes = x.lanes
    if r.op == "prod" and DTYPES[r.dtype].is_float:
        return _prefix_in_order(b, r, before, x)
    nothing = b.like(x, neutral(r.op, r.dtype))
    step = 1
    while step < lanes:
        shifted = b.shuffle(x, nothing, [lanes if lane < step else lane - step for lane in range(lanes)])
        x = accumulate(b, r.op, shifted, x, r.dtype)
        step *= 2
    running = accumulate(b, r.op, b.splat(before, lanes), x, r.dtype)
    total = b.extract(running, lanes - 1)
    if not r.exclusive:
        return total, running
    if lanes == 1:
        return total, before
    first = b.splat(before, lanes)
    return total, b.shuffle(running, first, [lanes, *range(lanes - 1)])


def _prefix_in_order(b: Builder, r: Running, before: Value, x: Value) -> tuple[Value, Value]:
    """The same, one lane after another: a zero stays zero, whatever follows it would overflow to by itself."""
    totals = [before]
    for lane in range(x.lanes):
        totals.append(accumulate(b, r.op, totals[-1], b.extract(x, lane), r.dtype))
    return totals[-1], b.join(totals[:-1] if r.exclusive else totals[1:])


def flat(nested: Sequence[Any]) -> list[Value]:
    """The values in nested lists, in order."""
    values: list[Value] = []
    for item in nested:
        if isinstance(item, Value):
            values.append(item)
        else:
            values.extend(flat(item))
    return values
