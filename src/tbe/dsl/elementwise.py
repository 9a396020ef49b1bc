"""Elementwise functions of the vector DSL."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from tbe import expr as e
from tbe.dsl.tensor import Expr, dsl_function, dtype_name, number, wider
from tbe.dtypes import DTYPES

__all__ = [
    "cast_to",
    "cast_to_round",
    "ceil",
    "floor",
    "round",
    "round_half_up",
    "round_to",
    "trunc",
    "vabs",
    "vadd",
    "vaddrelu",
    "vadds",
    "vand",
    "vaxpy",
    "vcmp",
    "vcmpsel",
    "vdiv",
    "vexp",
    "vlog",
    "vlogic",
    "vlrelu",
    "vmadd",
    "vmaddrelu",
    "vmax",
    "vmaxs",
    "vmin",
    "vmins",
    "vmla",
    "vmod",
    "vmul",
    "vmuls",
    "vnot",
    "vor",
    "vrec",
    "vrelu",
    "vrsqrt",
    "vsel",
    "vsqrt",
    "vsub",
    "vsubrelu",
]


def _tensor(x: Any) -> e.Tensor:
    if not isinstance(x, e.Tensor):
        raise TypeError(f"expected a tensor, got {type(x).__name__}")
    return x


def _pair(a: Any, b: Any) -> tuple[e.Tensor, e.Tensor]:
    """Two tensors of one shape, in the wider of their types: the DSL broadcasts only where it is told to."""
    a, b = _tensor(a), _tensor(b)
    if a.shape != b.shape:
        raise ValueError(f"shapes {a.shape} and {b.shape} differ; use broadcast first")
    dtype = a.dtype if a.dtype == b.dtype else wider(a.dtype, b.dtype)
    return e.cast(a, dtype), e.cast(b, dtype)


def _real(x: Any) -> e.Tensor:
    """A tensor of floats; integers are taken as float32."""
    x = _tensor(x)
    return x if DTYPES[x.dtype].is_float else e.cast(x, "float32")


def _scalar_operand(x: e.Tensor, value: Any, what: str = "the scalar") -> e.Tensor:
    """A number beside a tensor: a plain one, a tensor of one element, or an element of a tensor (`t[0]`)."""
    if isinstance(value, Expr):
        from tbe import tvm

        value = tvm.compute((1,), lambda _: value).expression
    if isinstance(value, e.Tensor) and value.size == 1:
        return e.broadcast_to(e.reshape(e.cast(value, x.dtype), (1,) * len(x.shape)), x.shape)
    return e.constant(number(value, x.dtype, what), x.dtype)


# -- two tensors ----------------------------------------------------------------------------------------------


def _of_two(name: str, operation: str, meaning: str) -> Any:
    """The function of that name: one operation on two tensors of the same shape and type."""

    def function(lhs: Any, rhs: Any) -> Any:
        return e.binary(operation, *_pair(lhs, rhs))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = meaning
    return dsl_function(function)


vadd = _of_two("vadd", "add", "lhs + rhs.")
vsub = _of_two("vsub", "sub", "lhs - rhs.")
vmul = _of_two("vmul", "mul", "lhs * rhs.")
vdiv = _of_two("vdiv", "div", "lhs / rhs; integers are divided towards zero.")
vmod = _of_two("vmod", "mod", "lhs - floor(lhs / rhs) * rhs, without its rounding errors.")
vmax = _of_two("vmax", "max", "The greater one; NaN where either is NaN.")
vmin = _of_two("vmin", "min", "The lesser one; NaN where either is NaN.")


@dsl_function
def vand(lhs: Any, rhs: Any) -> Any:
    """Bitwise and of integers, logical and of bools."""
    a, b = _pair(lhs, rhs)
    return e.binary("and" if a.dtype == "bool" else "bitand", a, b)


@dsl_function
def vor(lhs: Any, rhs: Any) -> Any:
    """Bitwise or of integers, logical or of bools."""
    a, b = _pair(lhs, rhs)
    return e.binary("or" if a.dtype == "bool" else "bitor", a, b)


@dsl_function
def vaddrelu(lhs: Any, rhs: Any) -> Any:
    """max(lhs + rhs, 0)."""
    return e.unary("relu", e.binary("add", *_pair(lhs, rhs)))


@dsl_function
def vsubrelu(lhs: Any, rhs: Any) -> Any:
    """max(lhs - rhs, 0)."""
    return e.unary("relu", e.binary("sub", *_pair(lhs, rhs)))


# -- a tensor and a number ------------------------------------------------------------------------------------


@dsl_function
def vadds(raw_tensor: Any, scalar: Any) -> Any:
    """raw_tensor + scalar."""
    x = _tensor(raw_tensor)
    return e.binary("add", x, _scalar_operand(x, scalar))


@dsl_function
def vmuls(raw_tensor: Any, scalar: Any) -> Any:
    """raw_tensor * scalar."""
    x = _tensor(raw_tensor)
    return e.binary("mul", x, _scalar_operand(x, scalar))


@dsl_function
def vmaxs(raw_tensor: Any, scalar: Any) -> Any:
    """The greater of the tensor and a number."""
    x = _tensor(raw_tensor)
    return e.binary("max", x, _scalar_operand(x, scalar))


@dsl_function
def vmins(raw_tensor: Any, scalar: Any) -> Any:
    """The lesser of the tensor and a number."""
    x = _tensor(raw_tensor)
    return e.binary("min", x, _scalar_operand(x, scalar))


@dsl_function
def vlrelu(raw_tensor: Any, alpha: Any = 0) -> Any:
    """raw_tensor where it is positive, alpha times it elsewhere."""
    x = _tensor(raw_tensor)
    zero = e.constant(0, x.dtype)
    return e.select(e.binary("gt", x, zero), x, e.binary("mul", x, _scalar_operand(x, alpha, "alpha")))


@dsl_function
def round_to(data: Any, max_value: Any, min_value: Any) -> Any:
    """The tensor limited to min_value .. max_value."""
    x = _tensor(data)
    return e.binary("max", e.binary("min", x, _scalar_operand(x, max_value)), _scalar_operand(x, min_value))


# -- three tensors --------------------------------------------------------------------------------------------


@dsl_function
def vmla(x: Any, y: Any, z: Any) -> Any:
    """x * y + z."""
    product = e.binary("mul", *_pair(x, y))
    return e.binary("add", *_pair(product, z))


@dsl_function
def vmadd(x: Any, y: Any, z: Any) -> Any:
    """x * z + y."""
    product = e.binary("mul", *_pair(x, z))
    return e.binary("add", *_pair(product, y))


@dsl_function
def vmaddrelu(x: Any, y: Any, z: Any) -> Any:
    """max(x * z + y, 0)."""
    product = e.binary("mul", *_pair(x, z))
    return e.unary("relu", e.binary("add", *_pair(product, y)))


@dsl_function
def vaxpy(lhs: Any, rhs: Any, scalar: Any) -> Any:
    """scalar * lhs + rhs."""
    a, b = _pair(lhs, rhs)
    return e.binary("add", e.binary("mul", a, _scalar_operand(a, scalar)), b)


# -- one tensor -----------------------------------------------------------------------------------------------


@dsl_function
def vabs(raw_tensor: Any) -> Any:
    """The absolute value."""
    return e.unary("abs", _tensor(raw_tensor))


@dsl_function
def vrelu(raw_tensor: Any) -> Any:
    """max(raw_tensor, 0)."""
    return e.unary("relu", _tensor(raw_tensor))


@dsl_function
def vnot(raw_tensor: Any) -> Any:
    """Every bit of integers inverted; logical not of bools."""
    x = _tensor(raw_tensor)
    return e.unary("not" if x.dtype == "bool" else "bitwise_not", x)


@dsl_function
def vexp(raw_tensor: Any) -> Any:
    """e to the power of the tensor."""
    return e.unary("exp", _real(raw_tensor))


@dsl_function
def vlog(raw_tensor: Any, priority_flag: Any = 0) -> Any:
    """The natural logarithm; `priority_flag` is accepted, the result is always the precise one."""
    return e.unary("log", _real(raw_tensor))


@dsl_function
def vsqrt(raw_tensor: Any, priority_flag: Any = 0) -> Any:
    """The square root."""
    return e.unary("sqrt", _real(raw_tensor))


@dsl_function
def vrsqrt(raw_tensor: Any, priority_flag: Any = 0) -> Any:
    """One over the square root."""
    return e.unary("rsqrt", _real(raw_tensor))


@dsl_function
def vrec(raw_tensor: Any, priority_flag: Any = 1) -> Any:
    """One over the tensor."""
    return e.unary("reciprocal", _real(raw_tensor))


# -- comparisons ----------------------------------------------------------------------------------------------

_RELATIONS = frozenset(["lt", "gt", "le", "ge", "eq", "ne"])
# Masks of one bit an element, and the bools they were packed from.
_packed: weakref.WeakKeyDictionary[e.Tensor, e.Tensor] = weakref.WeakKeyDictionary()


def _value(x: Any, like: e.Tensor) -> e.Tensor:
    """An operand that may be a tensor or a number."""
    if isinstance(x, e.Tensor):
        return _pair(like, x)[1]
    return _scalar_operand(like, x)


def _compare(lhs: Any, rhs: Any, operation: str) -> e.Tensor:
    if operation not in _RELATIONS:
        raise ValueError(f"operation {operation!r} is not one of {', '.join(sorted(_RELATIONS))}")
    a = _tensor(lhs)
    return e.binary(operation, a, _value(rhs, a))


@dsl_function
def vcmp(lhs: Any, rhs: Any, operation: str = "lt", mode: str = "bool") -> Any:
    """Compare a tensor with a tensor or a number.

    Mode "bool" gives bools; "bit" gives uint8 masks, the last dimension divided by eight, first element in the
    lowest bit.
    """
    compared = _compare(lhs, rhs, operation)
    if mode == "bool":
        return compared
    if mode != "bit":
        raise ValueError(f"mode {mode!r} is neither 'bool' nor 'bit'")
    return _pack(compared)


def _pack(bools: e.Tensor) -> e.Tensor:
    if not bools.shape or bools.shape[-1] % 8:
        raise ValueError(f"mode 'bit' needs a last dimension that is a multiple of 8, got {bools.shape}")
    eights = (*bools.shape[:-1], bools.shape[-1] // 8, 8)
    bits = e.cast(e.reshape(bools, eights), "uint8")
    weights = e.binary("shl", e.constant(1, "uint8"), e.iota(eights, len(eights) - 1, "uint8"))
    packed = e.reduce("sum", e.binary("mul", bits, weights), len(eights) - 1)
    _packed[packed] = bools
    return packed


def _condition(x: Any, shape: e.Shape | None) -> e.Tensor:
    """A mask as bools: bools, unpacked bits, or integers that are not 0."""
    x = _tensor(x)
    if x in _packed:
        return _packed[x]
    if x.dtype == "bool":
        return x
    if x.dtype == "uint8" and shape is not None and x.shape != shape:
        wide = (*x.shape, 8)
        bits = e.binary(
            "shr", e.broadcast_to(e.reshape(x, (*x.shape, 1)), wide), e.iota(wide, len(x.shape), "uint8")
        )
        ones = e.binary("ne", e.binary("bitand", bits, e.constant(1, "uint8")), e.constant(0, "uint8"))
        return e.reshape(ones, shape)
    return e.cast(x, "bool")


@dsl_function
def vsel(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, y elsewhere; x and y may be numbers."""
    like = next((v for v in (x, y) if isinstance(v, e.Tensor)), None)
    if like is None:
        dtype = str(getattr(x, "dtype", None) or getattr(y, "dtype", "float16"))
        mask = _condition(condition, None)
        a, b = (e.constant(number(v, dtype), dtype) for v in (x, y))
        return e.select(mask, e.broadcast_to(a, mask.shape), b)
    mask = _condition(condition, like.shape)
    if mask.shape != like.shape:
        raise ValueError(
            f"a condition of shape {mask.shape} for values of shape {like.shape}; use broadcast first"
        )
    return e.select(mask, _value(x, like), _value(y, like))


@dsl_function
def vcmpsel(lhs: Any, rhs: Any = None, operation: str = "lt", slhs: Any = None, srhs: Any = None) -> Any:
    """slhs where `lhs operation rhs` holds, srhs elsewhere.

    Left out, rhs is 2, slhs is lhs, and srhs is rhs where that is a tensor, else 0.
    """
    a = _tensor(lhs)
    rhs = 2 if rhs is None else rhs
    slhs = a if slhs is None else slhs
    srhs = (rhs if isinstance(rhs, e.Tensor) else 0) if srhs is None else srhs
    mask = _compare(a, rhs, operation)
    like = next((v for v in (slhs, srhs) if isinstance(v, e.Tensor)), a)
    if like.shape != a.shape:
        raise ValueError(
            f"values of shape {like.shape} chosen by a comparison of shape {a.shape}; use broadcast first"
        )
    yes, no = _value(slhs, like), _value(srhs, like)
    return e.select(mask, yes, no)


_LOGIC = {"logic_and": "and", "logic_or": "or"}


@dsl_function
def vlogic(lhs: Any, rhs: Any = None, operation: str = "logic_and") -> Any:
    """logic_and, logic_or or logic_not of bools."""
    a = _condition(lhs, None)
    if operation == "logic_not":
        return e.unary("not", a)
    if operation not in _LOGIC:
        raise ValueError(f"operation {operation!r} is not one of logic_and, logic_or, logic_not")
    return e.binary(_LOGIC[operation], *_pair(a, _condition(rhs, None)))


# -- conversions ----------------------------------------------------------------------------------------------


def _half_up(x: e.Tensor) -> e.Tensor:
    """The nearest integer, halves upwards; x - floor(x) is exact where it matters."""
    below = e.unary("floor", x)
    up = e.binary("ge", e.binary("sub", x, below), e.constant(0.5, x.dtype))
    return e.select(up, e.binary("add", below, e.constant(1.0, x.dtype)), below)


_ROUNDINGS: dict[str, Callable[[e.Tensor], e.Tensor]] = {
    "trunc": lambda x: x,
    "floor": lambda x: e.unary("floor", x),
    "ceil": lambda x: e.unary("ceil", x),
    "round": lambda x: e.unary("round", x),
    "rint": lambda x: e.unary("round", x),
    "half_up": _half_up,
}


def _converted(x: Any, dtype: str, mode: str) -> e.Tensor:
    x = _tensor(x)
    if mode not in _ROUNDINGS:
        raise ValueError(f"rounding {mode!r} is not one of {', '.join(_ROUNDINGS)}")
    to = dtype_name(dtype)
    whole = DTYPES[x.dtype].is_float and DTYPES[to].is_int
    return e.cast(_ROUNDINGS[mode](x) if whole else x, to)


@dsl_function
def cast_to(data: Any, dtype: str, f1628IntegerFlag: bool = True, round_mode: str = "trunc") -> Any:
    """Convert to another type.

    Floats become integers by `round_mode` ("trunc", "floor", "ceil", "round" to even, "half_up") and stay inside
    their range; integers wrap; to bool, whatever is not 0 is true. `f1628IntegerFlag` is accepted.

    >>> import numpy as np, tbe
    >>> x = tbe.placeholder((3,), "float32")
    >>> values = {x: np.array([-1.5, 0.5, 2.5], np.float32)}
    >>> [tbe.evaluate([cast_to(x, "int32", round_mode=m)], values)[0].tolist() for m in ("trunc", "half_up")]
    [[-1, 0, 2], [-1, 1, 3]]
    """
    return _converted(data, dtype, round_mode)


@dsl_function
def cast_to_round(data: Any, dtype: str) -> Any:
    """Convert to another type, to the nearest integer where that is one."""
    return _converted(data, dtype, "round")


@dsl_function
def floor(raw_tensor: Any, dtype: str = "int32") -> Any:
    """The greatest integer that is not greater, as int32."""
    return _converted(e.unary("floor", _real(raw_tensor)), dtype, "trunc")


@dsl_function
def ceil(raw_tensor: Any, dtype: str = "int32") -> Any:
    """The least integer that is not less, as int32."""
    return _converted(e.unary("ceil", _real(raw_tensor)), dtype, "trunc")


@dsl_function
def trunc(raw_tensor: Any, dtype: str = "int32") -> Any:
    """The integer part, as int32."""
    return _converted(e.unary("trunc", _real(raw_tensor)), dtype, "trunc")


@dsl_function
def round(raw_tensor: Any, dtype: str = "int32") -> Any:
    """The nearest integer, halves to even, as int32."""
    return _converted(e.unary("round", _real(raw_tensor)), dtype, "trunc")


@dsl_function
def round_half_up(raw_tensor: Any, dtype: str = "int32") -> Any:
    """The nearest integer, halves upwards, as int32."""
    return _converted(_half_up(_real(raw_tensor)), dtype, "trunc")
