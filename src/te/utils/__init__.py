"""Checks of parameters, arithmetic on shapes and error messages, under their older names."""

from tbe.common.utils import para_check, shape_util
from te.utils import check_para, error_manager, op_utils

__all__ = ["check_para", "error_manager", "op_utils", "para_check", "shape_util"]
