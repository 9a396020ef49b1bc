"""Helpers of the older DSL for shapes."""

from tbe.common.utils.shape_util import shape_to_list
from tbe.dsl.tensor import dtype_name

__all__ = ["dtype_name", "shape_to_list"]
