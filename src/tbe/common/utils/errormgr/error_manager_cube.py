"""The errors of cube operators, under the names operator files use."""

from tbe.common.utils.errormgr import error_manager_vector as _vector

raise_err_specific = _vector.raise_err_specific_reson  # type: ignore[attr-defined]
raise_err_message_cube = _vector.raise_err_message  # type: ignore[attr-defined]
