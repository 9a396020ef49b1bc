"""Elementwise operators: one value in, one value out, per position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tbe
from ge.ir.types import BOOL, FLOATS, INTS, NUMBERS, TENSORS, TensorDesc, numpy_dtype
from ge.ops.base import Attr, Engine, Input, NodeView, Operator, Output, Pattern, fail, register
from ge.ops.math.truncation import truncated
from ge.ops.plugins import Node, Results, Unsupported, plugin, simple
from ge.ops.traits import Cost, Epilogue, Formula, Precision, Sign
from ge.ops.views import Same


class Unary(Operator):
    """A function of one value."""

    x = Input("T", NUMBERS)
    y = Output("T")
    pattern = Pattern.ELEMENTWISE
    formula = Formula.PART


def _unary(
    type_: str,
    function: str,
    dtypes: frozenset[str] = FLOATS,
    cost: Cost = Cost.CHEAP,
    sign: Sign = Sign.ANY,
    epilogue: str = "",
    *,
    curve: bool = False,
    traits: Mapping[str, Any] | None = None,
    **frameworks: str | list[str],
) -> None:
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.unary(function, x)

    body = {
        "__doc__": f"{function}(x), per element.",
        "__module__": __name__,
        "x": Input("T", dtypes),
        "cost": cost,
        "sign": sign,
        "epilogue": Epilogue(epilogue) if epilogue else None,
        "formula": Formula.CURVE if curve or cost >= Cost.SLOW else Formula.PART,
        "compute": staticmethod(compute),
        **(traits or {}),
    }
    register(type(type_, (Unary,), body))
    simple(type_, **frameworks)


_POSITIVE = Sign.NON_NEGATIVE
_TWICE = {"involution": True}
_STEPS = {"idempotent": True, "piecewise_constant": True}

# type, tbe function, element types, cost, sign, epilogue, other traits, framework names
_unary(
    "Abs",
    "abs",
    NUMBERS,
    sign=_POSITIVE,
    epilogue="abs",
    traits={"idempotent": True},
    onnx="Abs",
    tensorflow="Abs",
    aten="abs",
)
_unary(
    "Neg",
    "neg",
    NUMBERS,
    Cost.PLAIN,
    traits={**_TWICE, "linear": True},
    onnx="Neg",
    tensorflow="Neg",
    aten="neg",
)
_unary("Exp", "exp", cost=Cost.SLOW, sign=_POSITIVE, onnx="Exp", tensorflow="Exp", aten="exp")
_unary("Exp2", "exp2", aten=["exp2", "special_exp2"])
_unary("Expm1", "expm1", tensorflow="Expm1", aten=["expm1", "special_expm1"])
_unary("Log", "log", cost=Cost.SLOW, onnx="Log", tensorflow="Log", aten="log")
_unary("Log1p", "log1p", curve=True, tensorflow="Log1p", aten=["log1p", "special_log1p"])
_unary("Log2", "log2", aten="log2")
_unary("Sqrt", "sqrt", sign=_POSITIVE, onnx="Sqrt", tensorflow="Sqrt", aten="sqrt")
_unary("Rsqrt", "rsqrt", tensorflow="Rsqrt", aten="rsqrt")
_unary("Reciprocal", "reciprocal", onnx="Reciprocal", tensorflow=["Reciprocal", "Inv"], aten="reciprocal")
_unary("Square", "square", NUMBERS, sign=_POSITIVE, epilogue="square", tensorflow="Square", aten="square")
_unary("Sin", "sin", onnx="Sin", tensorflow="Sin", aten="sin")
_unary("Cos", "cos", onnx="Cos", tensorflow="Cos", aten="cos")
_unary("Tan", "tan", cost=Cost.EXPENSIVE, onnx="Tan", tensorflow="Tan", aten="tan")
_unary("Asin", "asin", cost=Cost.EXPENSIVE, onnx="Asin", tensorflow="Asin", aten="asin")
_unary("Acos", "acos", cost=Cost.EXPENSIVE, onnx="Acos", tensorflow="Acos", aten="acos")
_unary("Atan", "atan", cost=Cost.EXPENSIVE, onnx="Atan", tensorflow="Atan", aten="atan")
_unary("Sinh", "sinh", cost=Cost.EXPENSIVE, onnx="Sinh", tensorflow="Sinh", aten="sinh")
_unary("Cosh", "cosh", cost=Cost.EXPENSIVE, onnx="Cosh", tensorflow="Cosh", aten="cosh")
_unary("Tanh", "tanh", cost=Cost.SLOW, epilogue="tanh", onnx="Tanh", tensorflow="Tanh", aten="tanh")
_unary("Asinh", "asinh", cost=Cost.EXPENSIVE, onnx="Asinh", tensorflow="Asinh", aten="asinh")
_unary("Acosh", "acosh", cost=Cost.EXPENSIVE, onnx="Acosh", tensorflow="Acosh", aten="acosh")
_unary("Atanh", "atanh", cost=Cost.EXPENSIVE, onnx="Atanh", tensorflow="Atanh", aten="atanh")
_unary("Erf", "erf", cost=Cost.EXPENSIVE, onnx="Erf", tensorflow="Erf", aten=["erf", "special_erf"])
_unary("Erfc", "erfc", cost=Cost.EXPENSIVE, tensorflow="Erfc", aten=["erfc", "special_erfc"])
_unary("Sign", "sign", NUMBERS, traits=_STEPS, onnx="Sign", tensorflow="Sign")
_unary("Floor", "floor", NUMBERS, traits=_STEPS, onnx="Floor", tensorflow="Floor")
_unary("Ceil", "ceil", NUMBERS, traits=_STEPS, onnx="Ceil", tensorflow="Ceil")
_unary("Round", "round", NUMBERS, traits=_STEPS, onnx="Round", tensorflow=["Round", "Rint"])
_unary("Trunc", "trunc", NUMBERS, traits=_STEPS)
_unary("Not", "not", BOOL, traits=_TWICE, onnx="Not", tensorflow="LogicalNot", aten="logical_not")
_unary("BitwiseNot", "bitwise_not", INTS, traits=_TWICE, onnx="BitwiseNot", tensorflow="Invert")
_unary("IsFinite", "isfinite", tensorflow="IsFinite")
_unary("IsNan", "isnan", onnx="IsNaN", tensorflow="IsNan")
_unary(
    "Sigmoid",
    "sigmoid",
    FLOATS,
    Cost.SLOW,
    _POSITIVE,
    "sigmoid",
    onnx="Sigmoid",
    tensorflow="Sigmoid",
    aten="sigmoid",
)
_unary("Softplus", "softplus", sign=_POSITIVE, curve=True, onnx="Softplus", tensorflow="Softplus")
_unary(
    "Relu",
    "relu",
    NUMBERS,
    Cost.PLAIN,
    _POSITIVE,
    "relu",
    curve=True,
    onnx="Relu",
    tensorflow="Relu",
    aten="relu",
)
_unary("Lgamma", "lgamma", cost=Cost.EXPENSIVE, tensorflow="Lgamma", aten="lgamma")
_unary("Digamma", "digamma", cost=Cost.EXPENSIVE, aten=["digamma", "special_digamma"])


@register
class IsInf(Unary):
    """Whether x is infinite, of the signs asked for."""

    x = Input("T", FLOATS)
    detect_positive = Attr(bool, True)
    detect_negative = Attr(bool, True)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        if op.detect_positive and op.detect_negative:
            return tbe.unary("isinf", x)
        if op.detect_positive or op.detect_negative:
            return tbe.binary("eq", x, float("inf") if op.detect_positive else float("-inf"))
        return tbe.broadcast_to(tbe.constant(False, "bool"), x.shape)


simple("IsInf", tensorflow="IsInf")


@plugin(onnx="IsInf")
def _is_inf(n: Node) -> Results:
    return n.op(
        "IsInf",
        n.inputs[0],
        detect_positive=bool(n.attr("detect_positive", 1)),
        detect_negative=bool(n.attr("detect_negative", 1)),
    )


@register
class Cast(Operator):
    """x converted to another element type; floats to integers truncate, anything to bool is x != 0."""

    x = Input("T", TENSORS)
    to = Attr(str, choices=tuple(sorted(TENSORS)))
    y = Output()
    pattern = Pattern.ELEMENTWISE
    cost = Cost.PLAIN
    keeps_means = True
    sign = Sign.KEPT
    precision = Precision(passes_on=True)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.cast(x, op.to)


@register
class BitCast(Operator):
    """The bits of x read as another element type of the same size."""

    x = Input("T", TENSORS)
    to = Attr(str, choices=tuple(sorted(TENSORS)))
    y = Output()
    aicpu = "bitcast"
    light = True

    @staticmethod
    def flops(op: NodeView) -> int:
        return 0

    @staticmethod
    def verify(op: NodeView) -> None:
        sizes = [numpy_dtype(d).itemsize for d in (op.inputs[0].dtype, op.to)]  # type: ignore[union-attr]
        if sizes[0] != sizes[1]:
            raise fail(op, f"elements of {sizes[0]} bytes cannot be read as {op.to}")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return TensorDesc(op.inputs[0].shape, op.to)  # type: ignore[union-attr]

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        return [np.ascontiguousarray(arrays[0]).view(numpy_dtype(op.to)).reshape(op.inputs[0].shape)]  # type: ignore[union-attr]


@plugin(onnx="BitCast")
def _bit_cast(n: Node) -> Results:
    return n.op("BitCast", n.inputs[0], to=n.element_type("to"))


@plugin(onnx="Cast")
def _cast(n: Node) -> Results:
    return _converted(n, n.element_type("to"))


@plugin(onnx="CastLike")
def _cast_like(n: Node) -> Results:
    return _converted(n, n.desc(1).dtype)


def _converted(n: Node, to: str) -> Results:
    if to == n.desc().dtype:
        return n.inputs[0]  # type: ignore[return-value]
    exact = n.desc().dtype not in FLOATS or to not in INTS
    return n.op("Cast", n.inputs[0], to=to) if exact else truncated(n, n.inputs[0], to)


@register
class Identity(Operator):
    """x itself."""

    x = Input("T", TENSORS)
    y = Output("T")
    pattern = Pattern.ELEMENTWISE
    engine = Engine.VIEW
    views = Same()
    cost = Cost.PLAIN
    linear = True
    formula = Formula.PART
    broadcasts = True

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return x


@plugin(
    onnx="Identity",
    tensorflow=["Identity", "StopGradient", "PreventGradient", "Snapshot", "GuaranteeConst", "DeepCopy"],
)
def _identity(n: Node) -> Results:
    return n.inputs[0]  # type: ignore[return-value]


# -- TensorFlow --------------------------------------------------------------------------------------------


@plugin(tensorflow="Bitcast")
def _bitcast_tf(n: Node) -> Results:
    to = str(n.attr("type"))
    if numpy_dtype(to).itemsize != numpy_dtype(n.desc().dtype).itemsize:
        raise Unsupported(f"the bits of {n.desc().dtype} as {to}, of another size", "use types of one size")
    return n.inputs[0] if to == n.desc().dtype else n.op("BitCast", n.inputs[0], to=to)  # type: ignore[return-value]


# Coefficients of the inverse error function in w = -log(1 - x * x): around 0 (in w - 2.5), and in the tails
# (in sqrt(w) - 3), after Giles, "Approximating the erfinv function".
_ERFINV_CENTRE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_ERFINV_TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def _polynomial(n: Node, w: Any, coefficients: tuple[float, ...]) -> Any:
    total: Any = n.op("Add", n.op("Mul", w, coefficients[0]), coefficients[1])
    for c in coefficients[2:]:
        total = n.op("Add", n.op("Mul", total, w), c)
    return total


def erfinv(n: Node, x: Any) -> Any:
    """The inverse error function in single precision."""
    w = n.op("Neg", n.op("Log1p", n.op("Neg", n.op("Square", x))))
    centre = _polynomial(n, n.op("Sub", w, 2.5), _ERFINV_CENTRE)
    tail = _polynomial(n, n.op("Sub", n.op("Sqrt", w), 3.0), _ERFINV_TAIL)
    inside = n.op("Mul", n.op("Select", n.op("Less", w, 5.0), centre, tail), x)
    at_end = n.op("Equal", n.op("Abs", x), 1.0)
    return n.op("Select", at_end, n.op("Mul", x, float("inf")), inside)


# The inverse of the normal distribution at p is t - log(t) / t - a polynomial in 1 / t, with t = sqrt(-2 * log(p)):
# least squares at Chebyshev nodes from the smallest float32 number to _NDTRI_TAIL.
_NDTRI_TAIL = 0.0018
_NDTRI_TERMS = (
    -4.37868957,
    5.62204661,
    -2.98437087,
    0.750032254,
    0.316907973,
    0.911336261,
    1.10099362e-04,
)


def _ndtri(n: Node, x: Any) -> Any:
    """sqrt(2) * erfinv(2 * x - 1); near 0 and 1, where that loses all digits, from the distance to them."""
    least = n.op("Minimum", x, n.op("Sub", 1.0, x))
    centre = n.op("Mul", erfinv(n, n.op("Sub", n.op("Mul", x, 2.0), 1.0)), 2.0**0.5)
    t = n.op("Sqrt", n.op("Mul", n.op("Log", least), -2.0))
    z = n.op("Reciprocal", t)
    correction = n.op("Add", n.op("Mul", n.op("Log", t), z), _polynomial(n, z, _NDTRI_TERMS))
    below = n.op("Sub", correction, t)
    tail = n.op("Select", n.op("Less", x, 0.5), below, n.op("Neg", below))
    in_tail = n.op("And", n.op("Less", least, _NDTRI_TAIL), n.op("NotEqual", least, 0.0))  # NaN below 0
    return n.op("Select", in_tail, tail, centre)


@plugin(tensorflow=["Erfinv", "Ndtri"])
def _inverse_error_function(n: Node) -> Results:
    if n.desc().dtype == "float64":
        raise Unsupported(f"{n.type} in double precision", "use float32")
    return erfinv(n, n.inputs[0]) if n.type == "Erfinv" else _ndtri(n, n.inputs[0])


@plugin(tensorflow=["Conj", "Real"])
def _real_part(n: Node) -> Results:
    return n.inputs[0]  # type: ignore[return-value]
