"""The processor's description, where some operator files look for it."""

from tbe.common.platform import api_check_support, get_soc_spec, intrinsic_check_support

__all__ = ["api_check_support", "get_soc_spec", "intrinsic_check_support"]
