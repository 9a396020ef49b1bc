"""Checks of the parameters of operator functions.

`check_op_params` declares what each parameter is (which `tbe` also uses to tell inputs from outputs) and checks a
call; the other functions check one thing each and raise RuntimeError with the operator, the parameter and the cause.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

__all__ = [
    "ALL_DTYPE_LIST",
    "ALL_FLOAT_DTYPE_LIST",
    "ALL_FORMAT_LIST",
    "ALL_INT_DTYPE_LIST",
    "DYNAMIC_INPUT",
    "DYNAMIC_OUTPUT",
    "KERNEL_NAME",
    "MAX_UNKNOWN_SHAPE_NUM",
    "OPTION_ATTR_BOOL",
    "OPTION_ATTR_FLOAT",
    "OPTION_ATTR_INT",
    "OPTION_ATTR_LIST_BOOL",
    "OPTION_ATTR_LIST_FLOAT",
    "OPTION_ATTR_LIST_INT",
    "OPTION_ATTR_LIST_LIST_INT",
    "OPTION_ATTR_STR",
    "OPTION_ATTR_TYPE",
    "OPTION_INPUT",
    "OPTION_OUTPUT",
    "OP_NAME",
    "PARAM_NAME",
    "REQUIRED_ATTR_BOOL",
    "REQUIRED_ATTR_FLOAT",
    "REQUIRED_ATTR_INT",
    "REQUIRED_ATTR_LIST_BOOL",
    "REQUIRED_ATTR_LIST_FLOAT",
    "REQUIRED_ATTR_LIST_INT",
    "REQUIRED_ATTR_LIST_LIST_INT",
    "REQUIRED_ATTR_STR",
    "REQUIRED_ATTR_TYPE",
    "REQUIRED_INPUT",
    "REQUIRED_OUTPUT",
    "SHAPE_SIZE_LIMIT",
    "check_dtype",
    "check_elewise_shape_range",
    "check_format",
    "check_input_type",
    "check_kernel_name",
    "check_op_params",
    "check_range",
    "check_shape",
    "check_shape_rule",
    "check_shape_size",
    "check_tensor_shape_size",
]

F = TypeVar("F", bound=Callable[..., Any])

REQUIRED_INPUT = "required_input"
OPTION_INPUT = "option_input"
DYNAMIC_INPUT = "dynamic_input"
REQUIRED_OUTPUT = "required_output"
OPTION_OUTPUT = "option_output"
DYNAMIC_OUTPUT = "dynamic_output"
REQUIRED_ATTR_INT = "required_attr_int"
REQUIRED_ATTR_FLOAT = "required_attr_float"
REQUIRED_ATTR_STR = "required_attr_str"
REQUIRED_ATTR_BOOL = "required_attr_bool"
REQUIRED_ATTR_TYPE = "required_attr_type"
REQUIRED_ATTR_LIST_INT = "required_attr_list_int"
REQUIRED_ATTR_LIST_FLOAT = "required_attr_list_float"
REQUIRED_ATTR_LIST_BOOL = "required_attr_list_bool"
REQUIRED_ATTR_LIST_LIST_INT = "required_attr_list_list_int"
OPTION_ATTR_INT = "option_attr_int"
OPTION_ATTR_FLOAT = "option_attr_float"
OPTION_ATTR_STR = "option_attr_str"
OPTION_ATTR_BOOL = "option_attr_bool"
OPTION_ATTR_TYPE = "option_attr_type"
OPTION_ATTR_LIST_INT = "option_attr_list_int"
OPTION_ATTR_LIST_FLOAT = "option_attr_list_float"
OPTION_ATTR_LIST_BOOL = "option_attr_list_bool"
OPTION_ATTR_LIST_LIST_INT = "option_attr_list_list_int"
KERNEL_NAME = "kernel_name"
OP_NAME = ""
PARAM_NAME = ""

SHAPE_SIZE_LIMIT = 2**31 - 1
MAX_UNKNOWN_SHAPE_NUM = 2**31 - 1
MAX_RANK = 8
ALL_FLOAT_DTYPE_LIST = ("bfloat16", "float16", "float32", "float64")
ALL_INT_DTYPE_LIST = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
ALL_DTYPE_LIST = (*ALL_INT_DTYPE_LIST, *ALL_FLOAT_DTYPE_LIST, "bool")
ALL_FORMAT_LIST = (
    "ND",
    "NCHW",
    "NHWC",
    "NC1HWC0",
    "HWCN",
    "FRACTAL_NZ",
    "NCDHW",
    "NDHWC",
    "NDC1HWC0",
    "FRACTAL_Z",
)

_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bool": (bool,),
    "type": (str,),
    "list_int": (list, tuple),
    "list_float": (list, tuple),
    "list_bool": (list, tuple),
    "list_list_int": (list, tuple),
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


Kind = str | tuple[str, ...] | list[str]  # several kinds: a parameter has to be one of them


def check_op_params(*type_args: Kind, **type_kwargs: Kind) -> Callable[[F], F]:
    """Declare what the parameters of an operator function are, in their order, and check them in every call.

    >>> @check_op_params(REQUIRED_INPUT, REQUIRED_OUTPUT, OPTION_ATTR_FLOAT, KERNEL_NAME)
    ... def scale(x, y, factor=1.0, kernel_name="scale"):
    ...     return factor
    >>> scale({"shape": (2,), "dtype": "float32"}, {"shape": (2,), "dtype": "float32"}, "two")
    Traceback (most recent call last):
    RuntimeError: operator scale: parameter 'factor' must be float, got str
    """

    def wrap(function: F) -> F:
        signature = inspect.signature(function)
        names = list(signature.parameters)
        kinds = dict(zip(names, type_args, strict=False)) | type_kwargs

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            for name, kind in kinds.items():
                _check_any(function.__name__, name, kind, bound.arguments.get(name))
            return function(*args, **kwargs)

        found = (kinds[n] for n in names if n in kinds)
        call.op_params = tuple(k if isinstance(k, str) else k[0] for k in found)  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return wrap


def _check_any(op: str, name: str, kind: Kind, value: Any) -> None:
    """Check a parameter that may be of several kinds."""
    first, *others = [kind] if isinstance(kind, str) else list(kind)
    try:
        _check_parameter(op, name, first, value)
    except RuntimeError:
        if not others:
            raise
        _check_any(op, name, others, value)


def _check_parameter(op: str, name: str, kind: str, value: Any) -> None:
    if kind == KERNEL_NAME:
        check_kernel_name(value)
        return
    if value is None or (kind in (OPTION_INPUT, OPTION_OUTPUT) and value == {}):
        if kind.startswith(("required", "dynamic")):
            raise RuntimeError(f"operator {op}: parameter '{name}' is missing")
        return
    if kind.endswith(("input", "output")):
        _check_tensor(op, name, kind, value)
        return
    expected = kind.split("attr_", 1)[1]
    value = value.item() if isinstance(value, np.generic) else value
    number = isinstance(value, _TYPES[expected])
    if not number or (isinstance(value, bool) and expected in ("int", "float")):
        raise RuntimeError(
            f"operator {op}: parameter '{name}' must be {expected}, got {type(value).__name__}"
        )


def _check_tensor(op: str, name: str, kind: str, value: Any) -> None:
    many = kind.startswith("dynamic")
    if many and not (isinstance(value, (list, tuple)) and value):
        raise RuntimeError(f"operator {op}: parameter '{name}' must be a list of descriptions")
    for one in value if many else [value]:
        if not isinstance(one, Mapping) or not {"shape", "dtype"} <= set(one):
            raise RuntimeError(f"operator {op}: parameter '{name}' must be a dict with 'shape' and 'dtype'")


def check_input_type(*types: Any) -> Callable[[F], F]:
    """Declare the Python types of an operator function's parameters, and check them in every call."""

    def wrap(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            for name, expected in zip(signature.parameters, types, strict=False):
                value = given.get(name)
                if value is not None and not isinstance(value, expected):
                    raise RuntimeError(
                        f"operator {function.__name__}: parameter '{name}' must be {expected}, "
                        f"got {type(value).__name__}"
                    )
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return wrap


def check_shape(
    shape: Any,
    min_dim: int = 0,
    max_dim: int = SHAPE_SIZE_LIMIT,
    min_rank: int = 0,
    max_rank: int = MAX_RANK,
    min_size: int = 0,
    max_size: int = SHAPE_SIZE_LIMIT,
    param_name: str = PARAM_NAME,
) -> None:
    """Check rank, dimensions and size of a shape."""
    if not isinstance(shape, (list, tuple)):
        raise RuntimeError(f"the shape of '{param_name}' must be a list or tuple, got {type(shape).__name__}")
    dims = [int(d) for d in shape]
    if not min_rank <= len(dims) <= max_rank:
        raise RuntimeError(f"'{param_name}' has rank {len(dims)}, which is not in {min_rank} .. {max_rank}")
    for d in dims:
        if d not in (-1, -2) and not min_dim <= d <= max_dim:
            raise RuntimeError(f"'{param_name}' has a dimension {d}, which is not in {min_dim} .. {max_dim}")
    if min(dims, default=0) >= 0 and not min_size <= math.prod(dims) <= max_size:
        raise RuntimeError(f"'{param_name}' has {math.prod(dims)} elements, not {min_size} .. {max_size}")


def check_shape_rule(
    shape: Any, min_dim: int | None = None, max_dim: int | None = None, max_shape_num: int | None = None
) -> None:
    """Check the rank of a shape, and that its dimensions are positive."""
    check_shape(shape, min_dim=1, min_rank=min_dim or 0, max_rank=max_dim or MAX_RANK)
    if max_shape_num is not None and max(shape, default=0) > max_shape_num:
        raise RuntimeError(f"a dimension of {tuple(shape)} is greater than {max_shape_num}")


def check_shape_size(shape: Any, limit: int = SHAPE_SIZE_LIMIT) -> int:
    """The number of elements of a shape, which must be less than a limit."""
    size = math.prod(int(d) for d in shape)
    if size > limit:
        raise RuntimeError(f"the shape {tuple(shape)} has {size} elements, more than {limit}")
    return size


check_tensor_shape_size = check_shape_size


def check_dtype(dtype: str, check_list: Iterable[str] = ALL_DTYPE_LIST, param_name: str = PARAM_NAME) -> None:
    """Check that a type is one of a list."""
    if not isinstance(dtype, str):
        raise RuntimeError(f"the type of '{param_name}' must be a string, got {type(dtype).__name__}")
    allowed = [d.lower() for d in check_list]
    if dtype.lower() not in allowed:
        raise RuntimeError(f"'{param_name}' is {dtype}, which is not one of {', '.join(allowed)}")


def check_dtype_rule(dtype: str, check_list: Iterable[str], param_name: str = PARAM_NAME) -> None:
    """Check that a type is one of a list."""
    check_dtype(dtype, check_list, param_name)


def check_format(
    data_format: str, check_list: Iterable[str] = ALL_FORMAT_LIST, param_name: str = PARAM_NAME
) -> None:
    """Check that a format is one of a list."""
    if data_format not in list(check_list):
        raise RuntimeError(f"'{param_name}' has format {data_format}, not one of {', '.join(check_list)}")


def check_kernel_name(kernel_name: Any) -> None:
    """Check that a kernel's name is a name."""
    if not isinstance(kernel_name, str) or not _NAME.fullmatch(kernel_name) or len(kernel_name) > 200:
        raise RuntimeError(f"kernel_name {kernel_name!r} is not a name: letters, digits and underscores")


def check_range(value: Any, low: Any, high: Any, param_name: str = PARAM_NAME) -> None:
    """Check that a number is between two others."""
    if not low <= value <= high:
        raise RuntimeError(f"'{param_name}' is {value}, which is not in {low} .. {high}")


def check_elewise_shape_range(inputs: Sequence[Mapping[str, Any]], support_broadcast: bool = False) -> None:
    """Check that the dimensions of inputs of one elementwise operator can be equal.

    With broadcasting, shapes are compared from their last dimensions on.

    >>> check_elewise_shape_range([{"shape": (8, 128)}, {"shape": (128,)}], support_broadcast=True)
    """
    shapes = [tuple(x["shape"]) for x in inputs]
    if not support_broadcast and len({len(s) for s in shapes if -2 not in s}) > 1:
        raise RuntimeError(f"shapes {shapes} have different ranks")
    for dims in zip(*(s[::-1] for s in shapes if -2 not in s), strict=False):
        known = {d for d in dims if d >= 0 and not (support_broadcast and d == 1)}
        if len(known) > 1:
            raise RuntimeError(f"shapes {shapes} do not go together")
