"""The functions of tbe.common.utils.shape_util, as `te.utils.shape_util` finds them."""

from tbe.common.utils.shape_util import *  # noqa: F403
