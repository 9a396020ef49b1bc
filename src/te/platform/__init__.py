"""What operator files ask about the processor, and how they register for fusion."""

from tbe.common.platform import *  # noqa: F403
from tbe.common.platform import (
    AICORE_TYPE,
    CORE_NUM,
    FULL_SOC_VERSION,
    L1_SIZE,
    L2_SIZE,
    SHORT_SOC_VERSION,
    SOC_VERSION,
    UB_SIZE,
    api_check_support,
    get_soc_spec,
)
from te.platform import cce_build, cce_conf, cce_params, fusion_manager, operation, shape_classifier
from te.platform.cce_conf import CceProductParams
from te.platform.operation import register_operator
from te.platform.shape_classifier import Mode, classify

__all__ = [
    "AICORE_TYPE",
    "CORE_NUM",
    "FULL_SOC_VERSION",
    "L1_SIZE",
    "L2_SIZE",
    "SHORT_SOC_VERSION",
    "SOC_VERSION",
    "UB_SIZE",
    "CceProductParams",
    "Mode",
    "api_check_support",
    "cce_build",
    "cce_conf",
    "cce_params",
    "classify",
    "fusion_manager",
    "get_soc_spec",
    "operation",
    "register_operator",
    "shape_classifier",
]
