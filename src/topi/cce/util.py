"""The functions of tbe.tvm.topi.cce.util, as `topi.cce.util` finds them."""

from tbe.tvm.topi.cce.util import *  # noqa: F403
