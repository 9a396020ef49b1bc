"""ATen: elementwise operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from ge.ir.types import FLOATS, INTS
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.aten_checks import divisor_of
from ge.ops.math.derivatives import derived
from ge.ops.math.elementwise import erfinv
from ge.ops.plugins import Unsupported

# -- one operand -------------------------------------------------------------------------------------------


def _declare_rounding(name: str, type_: str) -> None:
    @aten(f"{name}.default")
    def mapped_(n: AtenNode) -> Any:
        """Whole numbers stay as they are."""
        x = n.arg("self")
        if desc_of(x).dtype == "bool":
            raise Unsupported(f"{name} of bools")  # PyTorch's error
        return n.op("Identity", x) if desc_of(x).dtype not in FLOATS else n.op(type_, x)


for _name, _type in {
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "trunc": "Trunc",
    "fix": "Trunc",
}.items():
    _declare_rounding(_name, _type)


@aten("sign", "sgn")
def _sign(n: AtenNode) -> Any:
    """NaN has the sign 0."""
    x = n.arg("self")
    if desc_of(x).dtype == "bool":
        return n.op("Identity", x)
    y = n.op("Sign", x)
    return n.op("Select", n.op("IsNan", x), 0, y) if desc_of(x).dtype in FLOATS else y


@aten("log10")
def _log10(n: AtenNode) -> Any:
    x = n.wide(n.cast(n.arg("self"), n.out().dtype))
    if desc_of(x).dtype == "float64":
        raise Unsupported("log10 in double precision is not exact enough")
    return n.back(n.op("Mul", n.op("Log", x), 1 / math.log(10)))


@aten("bitwise_not")
def _bitwise_not(n: AtenNode) -> Any:
    return n.op("Not" if n.out().dtype == "bool" else "BitwiseNot", n.arg("self"))


def _declare_test(name: str, type_: str, of_others: bool, **attrs: Any) -> None:
    @aten(name)
    def mapped_(n: AtenNode) -> Any:
        x = n.arg("self")
        if desc_of(x).dtype not in FLOATS:
            return n.filled(of_others, n.out())
        return n.op(type_, x, **attrs)


_declare_test("isnan", "IsNan", False)
_declare_test("isinf", "IsInf", False)
_declare_test("isfinite", "IsFinite", True)
_declare_test("isposinf", "IsInf", False, detect_negative=False)
_declare_test("isneginf", "IsInf", False, detect_positive=False)


@aten("elu")
def _elu(n: AtenNode) -> Any:
    x = n.wide(n.arg("self"))
    alpha, scale, inner = (float(n.arg(k, 1.0)) for k in ("alpha", "scale", "input_scale"))
    if scale == inner == 1:
        return n.op("Elu", n.arg("self"), alpha=alpha)
    scaled = x if inner == 1 else n.op("Mul", x, inner)
    below = n.op("Mul", n.op("Expm1", scaled), alpha * scale)
    return n.back(n.op("Select", n.op("LessEqual", x, 0), below, n.op("Mul", x, scale)))


@aten("hardsigmoid")
def _hardsigmoid(n: AtenNode) -> Any:
    return n.op("HardSigmoid", n.arg("self"), alpha=1 / 6, beta=0.5)


@aten("softplus")
def _softplus(n: AtenNode) -> Any:
    """x itself beyond the threshold."""
    x = n.wide(n.arg("self"))
    beta, threshold = float(n.arg("beta", 1)), float(n.arg("threshold", 20))
    scaled = x if beta == 1 else n.op("Mul", x, beta)
    y = n.op("Log1p", n.op("Exp", scaled))
    y = y if beta == 1 else n.op("Div", y, beta)
    return n.back(n.op("Select", n.op("Greater", scaled, threshold), x, y))


@aten("erfinv")
def _erfinv(n: AtenNode) -> Any:
    if n.out().dtype == "float64":
        raise Unsupported("erfinv in double precision")
    return n.back(erfinv(n, n.wide(n.cast(n.arg("self"), n.out().dtype))))


@aten("clamp.default", "hardtanh", "clamp_min.default", "clamp_max.default")
def _clamp(n: AtenNode) -> Any:
    """Bounds of NaN make all of it NaN."""
    low, high = (n.arg(k) for k in (("min_val", "max_val") if "hardtanh" in n.type else ("min", "max")))
    return _bounded(n, low, high)


@aten("clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor")
def _clamp_tensors(n: AtenNode) -> Any:
    return _bounded(n, n.arg("min"), n.arg("max"))


def _bounded(n: AtenNode, low: Any, high: Any) -> Any:
    dtype = n.out().dtype
    if dtype == "bool":
        raise Unsupported("bounds of bools")
    y = n.cast(n.arg("self"), dtype)
    for type_, bound in (("Maximum", low), ("Minimum", high)):
        if bound is not None:
            y = n.op(type_, y, n.cast(bound, dtype))
    return y


# -- two operands ------------------------------------------------------------------------------------------


def _operands(n: AtenNode, dtype: str | None = None) -> tuple[Any, Any, str]:
    """Both operands in the type they are computed in."""
    a, b = n.arg("self"), n.arg("other")
    kind = dtype or n.out().dtype
    return n.cast(a, kind), n.cast(b, kind), kind


_ON_BOOLS = {"Add": "Or", "Mul": "And", "Maximum": "Or", "Minimum": "And"}


def _arithmetic(n: AtenNode, type_: str, a: Any, b: Any) -> Any:
    if desc_of(a).dtype == "bool":
        if type_ not in _ON_BOOLS:
            raise Unsupported(f"{type_} of bools")
        type_ = _ON_BOOLS[type_]
    return n.op(type_, a, b)


def _declare_binary(name: str, type_: str) -> None:
    @aten(name)
    def mapped_(n: AtenNode) -> Any:
        a, b, _ = _operands(n)
        return _arithmetic(n, type_, a, divisor_of(n, b, a) if type_ == "FMod" else b)


for _name, _type in {
    "mul": "Mul",
    "maximum": "Maximum",
    "minimum": "Minimum",
    "fmod": "FMod",
}.items():
    _declare_binary(_name, _type)


@aten("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub")
def _add(n: AtenNode) -> Any:
    """The factor alpha is on the second operand as it is written."""
    a, b, kind = _operands(n)
    alpha = n.arg("alpha", 1)
    name = n.type.partition(".")[0]
    first, second = (b, a) if name == "rsub" else (a, b)
    if name != "add" and any(_is_bool(n.arg(k)) for k in ("self", "other")):
        raise Unsupported(f"{name} of bools")  # PyTorch's error
    if kind == "bool":
        if not alpha:
            raise Unsupported("add of bools")
        return n.op("Or", first, second)
    if alpha != 1:
        second = _scaled(n, second, alpha)
        first = n.wide(first)
    return n.back(n.op("Add" if name == "add" else "Sub", first, second))


def _is_bool(value: Any) -> bool:
    return value.dtype == ir.DataType.BOOL if isinstance(value, ir.Value) else isinstance(value, bool)


def _scaled(n: AtenNode, x: Any, factor: Any) -> Any:
    """x times a number, 16-bit floats widened."""
    x = n.wide(x)
    return n.op("Mul", x, n.cast(factor, desc_of(x).dtype))


@aten("div.Tensor_mode", "div.Scalar_mode", "floor_divide", "special_floor_divide")
def _div_mode(n: AtenNode) -> Any:
    mode = "floor" if "floor_divide" in n.type else n.arg("rounding_mode")
    a, b, kind = _operands(n)
    if kind == "bool":
        raise Unsupported("division of bools")
    if mode is None:
        return n.op("Div", a, b)
    if kind in INTS:
        return n.op("FloorDiv" if mode == "floor" else "Div", a, divisor_of(n, b, a))
    wide_a, wide_b = n.wide(a), n.wide(b)
    if mode == "trunc":
        return n.back(n.op("Trunc", n.op("Div", wide_a, wide_b)))
    return n.back(_floor_quotient(n, wide_a, wide_b))


def _floor_quotient(n: AtenNode, a: Any, b: Any) -> Any:
    """From the exact remainder, so that a quotient that rounds up to a whole number is not one too large.

    Zero has the sign of the quotient.
    """
    rest = n.op("FMod", a, b)
    quotient = n.op("Div", n.op("Sub", a, rest), b)
    crosses = n.op("And", n.op("NotEqual", rest, 0), n.op("Xor", n.op("Less", b, 0), n.op("Less", rest, 0)))
    quotient = n.op("Select", crosses, n.op("Sub", quotient, 1), quotient)
    whole = n.op("Floor", quotient)
    whole = n.op("Select", n.op("Greater", n.op("Sub", quotient, whole), 0.5), n.op("Add", whole, 1), whole)
    plain = n.op("Div", a, b)
    whole = n.op("Select", n.op("Equal", whole, 0), n.op("Mul", plain, 0), whole)
    return n.op("Select", n.op("Equal", b, 0), plain, whole)


@aten("remainder")
def _remainder(n: AtenNode) -> Any:
    """The sign of the divisor."""
    a, b, kind = _operands(n)
    if kind == "bool":
        raise Unsupported("remainder of bools")
    if kind in INTS:
        return n.op("Mod", a, divisor_of(n, b, a))
    a, b = n.wide(a), n.wide(b)
    rest = n.op("FMod", a, b)
    other_sign = n.op(
        "And", n.op("NotEqual", rest, 0), n.op("Xor", n.op("Less", b, 0), n.op("Less", rest, 0))
    )
    return n.back(n.op("Select", other_sign, n.op("Add", rest, b), rest))


@aten("pow")
def _pow(n: AtenNode) -> Any:
    """Small constant exponents are products and roots."""
    base, exponent = n.arg("self"), n.arg("exponent")
    kind = n.out().dtype
    if kind == "bool" or (kind in INTS and not isinstance(exponent, int)):
        raise Unsupported(f"powers of {kind}")
    if isinstance(exponent, bool) or (kind in INTS and exponent < 0):
        raise Unsupported(f"the power {exponent} of whole numbers")
    x = n.cast(base, kind)
    if isinstance(exponent, (int, float)) and exponent in _POWERS:
        return n.back(_POWERS[exponent](n, n.wide(x) if kind in FLOATS else x))
    if kind in FLOATS:
        wide = n.wide(x)
        return n.back(n.op("Pow", wide, n.cast(exponent, desc_of(wide).dtype)))
    return n.op("Pow", x, n.cast(exponent, kind))


def _cube(n: AtenNode, x: Any) -> Any:
    return n.op("Mul", n.op("Square", x), x)


_POWERS: dict[float, Callable[[AtenNode, Any], Any]] = {
    1: lambda n, x: n.op("Identity", x),
    2: lambda n, x: n.op("Square", x),
    3: _cube,
    0.5: lambda n, x: n.op("Sqrt", x),
    -0.5: lambda n, x: n.op("Rsqrt", x),
    -1: lambda n, x: n.op("Reciprocal", x),
    -2: lambda n, x: n.op("Reciprocal", n.op("Square", x)),
}


def _declare_bitwise(name: str, on_bools: str, on_ints: str) -> None:
    @aten(name)
    def mapped_(n: AtenNode) -> Any:
        a, b, kind = _operands(n)
        return n.op(on_bools if kind == "bool" else on_ints, a, b)


_declare_bitwise("bitwise_and", "And", "BitwiseAnd")
_declare_bitwise("bitwise_or", "Or", "BitwiseOr")
_declare_bitwise("bitwise_xor", "Xor", "BitwiseXor")
_declare_bitwise("__and__", "And", "BitwiseAnd")
_declare_bitwise("__or__", "Or", "BitwiseOr")
_declare_bitwise("__xor__", "Xor", "BitwiseXor")


def _declare_nan_ignoring(name: str, type_: str) -> None:
    @aten(name)
    def mapped_(n: AtenNode) -> Any:
        """Where one is NaN, the other one."""
        a, b, kind = _operands(n)
        y = _arithmetic(n, type_, a, b)
        if kind not in FLOATS:
            return y
        return n.op("Select", n.op("IsNan", a), b, n.op("Select", n.op("IsNan", b), a, y))


_declare_nan_ignoring("fmax", "Maximum")
_declare_nan_ignoring("fmin", "Minimum")


@aten("hypot")
def _hypot(n: AtenNode) -> Any:
    """Scaled by the larger one, so that squares do not overflow."""
    a, b, _ = _operands(n)
    a, b = n.op("Abs", n.wide(a)), n.op("Abs", n.wide(b))
    big, small = n.op("Maximum", a, b), n.op("Minimum", a, b)
    ratio = n.op("Div", small, big)
    y = n.op("Mul", big, n.op("Sqrt", n.op("Add", n.op("Square", ratio), 1)))
    y = n.op("Select", n.op("Equal", big, 0), 0, y)
    infinite = n.op("Or", n.op("IsInf", a), n.op("IsInf", b))
    return n.back(n.op("Select", infinite, math.inf, y))


# -- choosing ----------------------------------------------------------------------------------------------


@aten("masked_fill")
def _masked_fill(n: AtenNode) -> Any:
    kind = n.out().dtype
    y = n.op("Select", n.arg("mask"), n.cast(n.arg("value"), kind), n.cast(n.arg("self"), kind))
    return n.spread(y, n.out().shape)


# -- types and copies --------------------------------------------------------------------------------------


@aten("_to_copy", "to.dtype", "type_as", "_autocast_to_reduced_precision", "_autocast_to_full_precision")
def _to_copy(n: AtenNode) -> Any:
    x = n.arg("self")
    source, target = desc_of(x).dtype, n.out().dtype
    if source in FLOATS and target in INTS and target != "int64" and target != "int32":
        raise Unsupported(f"{source} out of the range of {target} is not defined")
    return n.op("Identity", x) if source == target else n.cast(x, target)


@aten("prims.convert_element_type")
def _convert(n: AtenNode) -> Any:
    return n.cast(n.arg("a"), n.out().dtype)


@aten("clone", "alias", "detach", "lift_fresh_copy", "lift_fresh", "contiguous", "positive", "lift")
def _same(n: AtenNode) -> Any:
    return n.arg("self")


@aten("copy")
def _copy(n: AtenNode) -> Any:
    """The source's elements in the destination's shape and type."""
    return n.spread(n.cast(n.arg("src"), n.out().dtype), n.out().shape)


@aten("fill")
def _fill(n: AtenNode) -> Any:
    value = n.arg("value")
    if isinstance(value, ir.Value):
        value = n.shaped(n.cast(value, n.out().dtype), [])
    return n.filled(value, n.out())


# -- gradients ---------------------------------------------------------------------------------------------


@aten("threshold_backward")
def _threshold_backward(n: AtenNode) -> Any:
    """Where x is NaN the gradient passes."""
    x, gradient = n.arg("self"), n.arg("grad_output")
    below = n.op("LessEqual", x, n.cast(n.arg("threshold", 0), desc_of(x).dtype))
    return n.op("Select", below, 0, gradient)


@aten("tanh_backward", "sigmoid_backward")
def _backward_of_result(n: AtenNode) -> Any:
    g, y = n.wide(n.arg("grad_output")), n.wide(n.arg("output"))
    return n.back(derived(n.op, n.type.partition("_")[0].capitalize(), g, y))


@aten("silu_backward")
def _silu_backward(n: AtenNode) -> Any:
    g, x = n.wide(n.arg("grad_output")), n.wide(n.arg("self"))
    s = n.op("Sigmoid", x)
    inner = n.op("Add", n.op("Mul", x, n.op("Sub", 1, s)), 1)
    return n.back(n.op("Mul", n.op("Mul", g, s), inner))


@aten("elu_backward")
def _elu_backward(n: AtenNode) -> Any:
    """Of elu, selu and celu; NaN takes the side of the exponential, which keeps it."""
    g, x = n.wide(n.arg("grad_output")), n.wide(n.arg("self_or_result"))
    alpha, scale, slope = (float(n.arg(name)) for name in ("alpha", "scale", "input_scale"))
    if n.arg("is_result"):
        below = n.op("Mul", n.op("Add", x, alpha * scale), slope)
    else:
        below = n.op("Mul", n.op("Exp", n.op("Mul", x, slope)), slope * alpha * scale)
    return n.back(n.op("Mul", g, n.op("Select", n.op("Greater", x, 0), scale, below)))


@aten("gelu_backward")
def _gelu_backward(n: AtenNode) -> Any:
    g, given = n.wide(n.arg("grad_output")), n.arg("self")
    x = n.wide(given)
    narrow = desc_of(given).dtype != desc_of(x).dtype  # the product is rounded
    slope = n.op("GeluSlope", x, approximate=n.arg("approximate", "none"), narrow=narrow)
    return n.back(n.op("Mul", g, slope))
