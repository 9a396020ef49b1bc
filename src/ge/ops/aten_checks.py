"""ATen: runs fail on invalid indices and zero divisors, like PyTorch's own kernels."""

from __future__ import annotations

from typing import Any

from ge.errors import GeError
from ge.ir.types import INTS
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode
from ge.ops.math import checks
from ge.ops.math.checks import in_range, nonzero
from ge.ops.plugins import Unsupported

__all__ = ["OUTSIDE", "divisor_of", "failing_where", "places_of"]


OUTSIDE = "{what}{place} = {value} is out of bounds for dimension with size {size}"


def places_of(
    n: AtenNode,
    value: Any,
    extent: int,
    *,
    from_end: bool = False,
    what: str = "index",
    text: str = OUTSIDE,
) -> Any:
    """Positions below an extent, in a type that kernels take; with from_end, negative ones count from the end."""
    wide = value if desc_of(value).dtype in ("int64", "int32") else n.op("Cast", value, to="int64")
    try:
        return in_range(
            n.builder,
            wide,
            [extent],
            what,
            from_end=from_end,
            operator=n.type,
            message=f"{_named(n)}: {text}",
        )
    except GeError as error:
        raise Unsupported("a constant index is out of range: PyTorch's own kernel says so") from error


def divisor_of(n: AtenNode, value: Any, dividend: Any) -> Any:
    """A divisor that is not zero where it is a whole number."""
    if desc_of(value).dtype not in INTS:
        return value
    text = f"ZeroDivisionError: {_named(n)}: " + "{what}{place} is 0"
    try:
        return nonzero(n.builder, value, dividend, operator=n.type, message=text)
    except GeError as error:
        raise Unsupported("a constant divisor is zero: PyTorch's own kernel says so") from error


def failing_where(n: AtenNode, value: Any, wrong: Any, text: str) -> Any:
    """A tensor of floats; the run fails if a condition holds for any element."""
    axes = list(range(desc_of(wrong).rank))
    found = n.op("ReduceAny", wrong, axes=axes, keepdims=False) if axes else wrong
    try:
        return checks.failing_where(n, value, found, f"{_named(n)}: {text}")
    except GeError as error:
        raise Unsupported("a constant is invalid: PyTorch's own kernel says so") from error


def _named(n: AtenNode) -> str:
    return f"aten.{n.type.partition('.')[0]}"
