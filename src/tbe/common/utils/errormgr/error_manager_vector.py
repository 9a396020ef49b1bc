"""The errors operator files raise about their inputs and attributes, each with a message that repeats its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

# name -> message; the arguments fill it in their order, the first is always the operator
_MESSAGES = {
    "raise_err_input_dtype_not_supported": "'{}' must be one of {}, got {}",
    "raise_err_check_params_rules": "parameter '{1}' breaks the rule {0}: {2}",
    "raise_err_input_format_invalid": "'{}' must have a format of {}, got {}",
    "raise_err_inputs_shape_not_equal": "'{}' and '{}' must have one shape, got {} and {}; expected {}",
    "raise_err_inputs_dtype_not_equal": "'{}' and '{}' must have one type, got {} and {}",
    "raise_err_two_input_dtype_invalid": "'{}' and '{}': {}",
    "raise_err_two_input_shape_invalid": "'{}' and '{}': {}",
    "raise_err_two_input_format_invalid": "'{}' and '{}': {}",
    "raise_err_input_param_not_in_range": "'{}' must be in {} .. {}, got {}",
    "raise_err_input_param_range_invalid": "'{}' must be in {} .. {}, got {}",
    "raise_err_input_value_invalid": "'{}' must be {}, got {}",
    "raise_err_input_shape_invalid": "the shape of '{}' is wrong: {}",
    "raise_err_miss_mandatory_parameter": "parameter '{}' is missing",
    "raise_err_pad_mode_invalid": "the padding mode must be one of {}, got {}",
    "raise_err_attr_dtype_invalid": "attribute '{}' must be {}, got {}",
    "raise_err_param_type_invalid": "'{}' must be {}, got {}",
    "raise_err_specific_reson": "{}",
    "raise_err_message": "{}",
    "raise_err_check_the_validity_of_variable": "{}",
}

__all__ = list(_MESSAGES)


def _raiser(name: str, template: str) -> Callable[..., NoReturn]:
    def function(op_name: str, *args: Any) -> NoReturn:
        given = [*map(str, args), *["?"] * 8]
        raise RuntimeError(f"operator {op_name}: {template.format(*given)}")

    function.__name__ = name
    function.__doc__ = f"Raise RuntimeError: {template}."
    return function


globals().update({name: _raiser(name, template) for name, template in _MESSAGES.items()})
