"""All that newer operator files import, in one place."""

from tbe import dsl as tbe
from tbe import tik, tvm
from tbe.common import context as tbe_context
from tbe.common import platform as tbe_platform
from tbe.common import register as tbe_register
from tbe.common.context import get_context
from tbe.common.register import register_operator, register_operator_compute
from tbe.common.utils import para_check, shape_util
from tbe.common.utils.errormgr import error_manager_cube, error_manager_vector
from tbe.dsl import OpPatternMode, auto_schedule, build, classify
from te.lang.base import operation_impl as operation
from te.platform import cce_params as platform_cce_params
from te.platform.fusion_manager import fusion_manager


class OpImplMode:
    """How precise an implementation is asked to be; results here are always the precise ones."""

    HIGH_PERFORMANCE = "high_performance"
    HIGH_PRECISION = "high_precision"
    ENABLE_FLOAT_32_EXECUTION = "enable_float_32_execution"
    SUPPORT_OUT_OF_BOUND_INDEX = "support_out_of_bound_index"


__all__ = [
    "OpImplMode",
    "OpPatternMode",
    "auto_schedule",
    "build",
    "classify",
    "error_manager_cube",
    "error_manager_vector",
    "fusion_manager",
    "get_context",
    "operation",
    "para_check",
    "platform_cce_params",
    "register_operator",
    "register_operator_compute",
    "shape_util",
    "tbe",
    "tbe_context",
    "tbe_platform",
    "tbe_register",
    "tik",
    "tvm",
]
