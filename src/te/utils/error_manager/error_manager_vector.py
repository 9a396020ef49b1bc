"""The functions of tbe.common.utils.errormgr.error_manager_vector under their older place."""

from tbe.common.utils.errormgr import error_manager_vector as _module

globals().update({k: v for k, v in vars(_module).items() if not k.startswith("_")})
