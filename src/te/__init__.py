"""The older names of the operator language; `tbe` is what they stand for."""

from tbe import tik, tvm
from te import lang, platform, utils

__all__ = ["lang", "platform", "tik", "tvm", "utils"]
