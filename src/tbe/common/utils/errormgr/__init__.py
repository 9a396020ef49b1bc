"""Error messages of operator files."""

from tbe.common.utils.errormgr import error_manager_cube, error_manager_util, error_manager_vector

__all__ = ["error_manager_cube", "error_manager_util", "error_manager_vector"]
