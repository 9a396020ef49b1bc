"""Registration of operators and their compute functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tbe.dsl.registry import Registered, computes, operators, register_compute, register_operator

__all__ = [
    "get_op_compute",
    "get_operator",
    "register_op_compute",
    "register_op_param_pass",
    "register_operator",
    "register_operator_compute",
    "register_param_generalization",
]

F = TypeVar("F", bound=Callable[..., Any])


def register_op_compute(
    op_type: str, op_mode: str = "dynamic", support_fusion: bool = True, **more: Any
) -> Callable[[F], F]:
    """Register the compute function of an operator."""
    return register_compute(op_type, op_mode=op_mode, support_fusion=support_fusion, **more)


register_operator_compute = register_op_compute


def register_param_generalization(op_type: str) -> Callable[[F], F]:
    """Accepted: how an operator's descriptions are generalised; kernels are built for the shapes at hand."""
    return lambda function: function


register_op_param_pass = register_param_generalization


def get_operator(op_type: str) -> Registered | None:
    """The registered operator function."""
    return operators.get(op_type)


def get_op_compute(op_type: str) -> Registered | None:
    """The registered compute function."""
    return computes.get(op_type)
