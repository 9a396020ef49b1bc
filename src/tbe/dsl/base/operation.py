"""Questions and notes of operator files about the build at work."""

from __future__ import annotations

from typing import Any

from tbe.common.context import Context, add_compile_info, get_context
from tbe.dsl.building import compute, has_unknown
from tbe.dsl.dynamic import var
from tbe.dsl.registry import current_call, register_operator

__all__ = [
    "add_compile_info",
    "add_compile_info_inner",
    "compute",
    "get_compile_info",
    "get_context",
    "get_op_context",
    "get_te_var",
    "in_dynamic",
    "register_operator",
    "var",
    "var_inner",
]

add_compile_info_inner, var_inner = add_compile_info, var


def get_op_context() -> Context:
    """The context of the build."""
    return get_context()


def get_compile_info() -> dict[str, Any]:
    """What was noted about the build."""
    return get_context().get_compile_info()


def get_te_var(name: str) -> Any:
    """A variable that was declared by its name: dimensions are known here, so there is none."""
    return None


def in_dynamic() -> bool:
    """Whether the operator at work was called with dimensions that are not known."""
    call = current_call.get()
    return call is not None and has_unknown((call.args, call.kwargs))
