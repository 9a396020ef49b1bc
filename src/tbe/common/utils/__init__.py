"""Checks of parameters, arithmetic on shapes, and error messages for operator files."""

from tbe.common.utils import errormgr, para_check, shape_util

__all__ = ["errormgr", "para_check", "shape_util"]
