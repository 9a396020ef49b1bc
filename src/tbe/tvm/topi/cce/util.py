"""Checks of parameters and arithmetic on shapes, as the oldest operator files import them."""

from tbe.common.utils import para_check as _para_check
from tbe.common.utils import shape_util as _shape_util
from tbe.common.utils.para_check import *  # noqa: F403
from tbe.common.utils.para_check import check_dtype_rule
from tbe.common.utils.shape_util import *  # noqa: F403

__all__ = [
    *_para_check.__all__,
    *_shape_util.__all__,
    "VERSION_CLOUD",
    "VERSION_MINI",
    "check_dtype_rule",
    "get_product_version",
    "is_scalar",
]

VERSION_CLOUD, VERSION_MINI = "cloud", "mini"


def get_product_version() -> str:
    """The product that files decide by: the one with large buffers."""
    return VERSION_CLOUD


def is_scalar(shape: object) -> bool:
    """Whether a shape is that of one element."""
    return isinstance(shape, (list, tuple)) and all(d == 1 for d in shape)
