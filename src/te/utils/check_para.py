"""The functions of tbe.common.utils.para_check, as `te.utils.para_check` finds them."""

from tbe.common.utils.para_check import *  # noqa: F403
