"""Operators for several shapes, under their older names."""

from tbe.common.context import add_compile_info, get_context
from tbe.common.register import register_operator
from tbe.dsl import compute, var

__all__ = ["add_compile_info", "compute", "get_context", "register_operator", "var"]
