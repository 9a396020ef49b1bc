"""Small questions operator files ask about descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tbe.dsl.building import is_unknown

__all__ = ["check_op_impl_mode", "is_unknown", "is_unknown_rank_input"]


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
