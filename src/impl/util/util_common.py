"""Small questions operator files ask about descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tbe.dsl.building import is_unknown

__all__ = ["align", "ceil", "check_op_impl_mode", "is_dynamic_input", "is_unknown", "is_unknown_rank_input"]


def ceil(x: int, y: int) -> int:
    """The quotient of whole numbers, rounded up.

    >>> ceil(7, 4), align(7, 4)
    (2, 8)
    """
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The least multiple of y that is not less than x."""
    return ceil(x, y) * y


def is_dynamic_input(inputs: Any) -> bool:
    """Whether a description, or one of several, has dimensions that are not known."""
    many = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    return any(is_unknown(x) for x in many)


def is_unknown_rank_input(inputs: Any) -> bool:
    """Whether a description, or one of several, has an unknown rank."""
    many: Sequence[Mapping[str, Any]] = inputs if isinstance(inputs, (list, tuple)) else [inputs]
    return any(tuple(x.get("shape", ())) == (-2,) for x in many)


def check_op_impl_mode(impl_mode: str, supported: Sequence[str], op_name: str = "") -> None:
    """Check that a precision mode is one of those an operator has."""
    if impl_mode not in supported:
        raise RuntimeError(
            f"operator {op_name}: impl_mode {impl_mode!r} is not one of {', '.join(supported)}"
        )
