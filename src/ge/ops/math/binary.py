"""Binary operators with NumPy broadcasting, and Select."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

import tbe
from ge.ir.types import BOOL, FLOATS, INTS, NUMBERS, TENSORS, numpy_dtype
from ge.ops.base import Input, NodeView, Operator, Output, Pattern, register
from ge.ops.math.checks import divisor_of, nonzero
from ge.ops.plugins import Node, Results, Unsupported, plugin, simple
from ge.ops.traits import Cost, Epilogue, Formula, Precision, Sign


class Binary(Operator):
    """A function of two values of one type, broadcast against each other."""

    a = Input("T", NUMBERS)
    b = Input("T", NUMBERS)
    y = Output("T")
    pattern = Pattern.BROADCAST
    formula = Formula.PART


def _nonzero_divisor(op: NodeView) -> dict[int, dict[str, Any]]:
    return {1: {}}


def _binary(
    type_: str,
    function: str,
    dtypes: frozenset[str] = NUMBERS,
    cost: Cost = Cost.CHEAP,
    traits: Mapping[str, Any] = MappingProxyType({}),
    **frameworks: str | list[str],
) -> None:
    def compute(op: NodeView, a: tbe.Tensor, b: tbe.Tensor) -> tbe.Tensor:
        return tbe.binary(function, a, b)

    body = {
        "__doc__": f"{function}(a, b), per element.",
        "__module__": __name__,
        "a": Input("T", dtypes),
        "b": Input("T", dtypes),
        "cost": cost,
        "compute": staticmethod(compute),
        **traits,
    }
    if function in ("div", "floordiv", "mod", "fmod"):
        body["rules"] = staticmethod(_nonzero_divisor)
    register(type(type_, (Binary,), body))
    simple(type_, **frameworks)


def _arithmetic(epilogue: str, **more: Any) -> dict[str, Any]:
    """The traits of arithmetic operators."""
    return {"epilogue": Epilogue(epilogue), "precision": Precision(passes_on=True), **more}


_SWAPS = {"commutative": True, "sign": Sign.KEPT}

# type, tbe function, element types, cost, traits, framework names
_binary(
    "Add",
    "add",
    NUMBERS,
    Cost.PLAIN,
    _arithmetic("add", linear=True, **_SWAPS),
    onnx="Add",
    tensorflow=["Add", "AddV2", "BiasAddV1"],
)
_binary("Sub", "sub", NUMBERS, Cost.PLAIN, _arithmetic("sub", linear=True), onnx="Sub", tensorflow="Sub")
_binary("Mul", "mul", NUMBERS, Cost.PLAIN, _arithmetic("mul", **_SWAPS), onnx="Mul", tensorflow="Mul")
_binary(
    "Div", "div", traits=_arithmetic("div", sign=Sign.KEPT), aten=["div.Tensor", "div.Scalar", "true_divide"]
)
_binary("FloorDiv", "floordiv", traits={"piecewise_constant": True})
_binary("Mod", "mod")
_binary("FMod", "fmod")
_binary("Pow", "pow", cost=Cost.EXPENSIVE)
_binary("Maximum", "max", NUMBERS, Cost.PLAIN, {**_SWAPS, "epilogue": Epilogue("max")}, tensorflow="Maximum")
_binary("Minimum", "min", NUMBERS, Cost.PLAIN, {**_SWAPS, "epilogue": Epilogue("min")}, tensorflow="Minimum")
_binary("Atan2", "atan2", FLOATS, Cost.EXPENSIVE, tensorflow="Atan2", aten=["atan2", "arctan2"])
_binary("And", "and", BOOL, onnx="And", tensorflow="LogicalAnd", aten="logical_and")
_binary("Or", "or", BOOL, onnx="Or", tensorflow="LogicalOr", aten="logical_or")
_binary("Xor", "xor", BOOL, onnx="Xor", aten="logical_xor")
_binary("Equal", "eq", TENSORS, onnx="Equal", aten="eq")
_binary("NotEqual", "ne", TENSORS, aten="ne")
_binary("Less", "lt", TENSORS, Cost.PLAIN, onnx="Less", tensorflow="Less", aten="lt")
_binary("LessEqual", "le", TENSORS, Cost.PLAIN, onnx="LessOrEqual", tensorflow="LessEqual", aten="le")
_binary("Greater", "gt", TENSORS, Cost.PLAIN, onnx="Greater", tensorflow="Greater", aten="gt")
_binary(
    "GreaterEqual", "ge", TENSORS, Cost.PLAIN, onnx="GreaterOrEqual", tensorflow="GreaterEqual", aten="ge"
)
_binary("BitwiseAnd", "bitand", INTS, onnx="BitwiseAnd", tensorflow="BitwiseAnd")
_binary("BitwiseOr", "bitor", INTS, onnx="BitwiseOr", tensorflow="BitwiseOr")
_binary("BitwiseXor", "bitxor", INTS, onnx="BitwiseXor", tensorflow="BitwiseXor")
_binary("ShiftLeft", "shl", INTS, aten="bitwise_left_shift")
_binary("ShiftRight", "shr", INTS, aten="bitwise_right_shift")


@register
class SquaredDifference(Binary):
    """(a - b) squared."""

    @staticmethod
    def compute(op: NodeView, a: tbe.Tensor, b: tbe.Tensor) -> tbe.Tensor:
        return tbe.unary("square", a - b)


simple("SquaredDifference", tensorflow="SquaredDifference")


@register
class PRelu(Binary):
    """x where positive, else slope * x; the slope broadcasts to x."""

    @staticmethod
    def compute(op: NodeView, a: tbe.Tensor, b: tbe.Tensor) -> tbe.Tensor:
        return tbe.select(a >= 0, a, a * b)


simple("PRelu", onnx="PRelu")


@register
class Select(Operator):
    """x where the condition holds, else y; all broadcast."""

    condition = Input("C", BOOL)
    x = Input("T", TENSORS)
    y = Input("T", TENSORS)
    z = Output("T")
    pattern = Pattern.BROADCAST
    cost = Cost.PLAIN
    precision = Precision(passes_on=True)

    @staticmethod
    def compute(op: NodeView, condition: tbe.Tensor, x: tbe.Tensor, y: tbe.Tensor) -> tbe.Tensor:
        return tbe.select(condition, x, y)


simple(
    "Select",
    onnx="Where",
    tensorflow="SelectV2",
    aten=["where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar"],
)


@plugin(onnx="Pow", since=7)
def _pow(n: Node) -> Results:
    """The exponent may have its own type."""
    x, y = n.inputs[0], n.inputs[1]
    dtype, exponent = n.desc(0).dtype, n.desc(1).dtype
    if dtype == exponent:
        return n.op("Pow", x, y)
    if dtype in FLOATS or exponent in INTS:
        return n.op("Pow", x, n.op("Cast", y, to=dtype))
    return n.op("Cast", n.op("Pow", n.op("Cast", x, to=exponent), y), to=dtype)


@plugin(onnx="Mod")
def _mod(n: Node) -> Results:
    return n.op("FMod" if n.attr("fmod", 0) else "Mod", n.inputs[0], divisor_of(n, n.inputs[1], n.inputs[0]))


@plugin(onnx="BitShift")
def _bit_shift(n: Node) -> Results:
    direction = n.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise Unsupported(f"direction {direction!r} of BitShift is unknown", "use LEFT or RIGHT")
    return n.op("ShiftLeft" if direction == "LEFT" else "ShiftRight", n.inputs[0], n.inputs[1])


def _fold(onnx: str, type_: str) -> None:
    """Map a variadic operator to a chain of binary ones."""

    @plugin(onnx=onnx)
    def chained(n: Node) -> Results:
        result = n.inputs[0]
        for value in n.inputs[1:]:
            result = n.op(type_, result, value)
        return result  # type: ignore[return-value]


_fold("Sum", "Add")
_fold("Max", "Maximum")
_fold("Min", "Minimum")


@plugin(onnx="Mean")
def _mean(n: Node) -> Results:
    total = n.inputs[0]
    for value in n.inputs[1:]:
        total = n.op("Add", total, value)
    return n.op("Div", total, float(len(n.inputs)))


# -- TensorFlow --------------------------------------------------------------------------------------------


@plugin(tensorflow=["Equal", "NotEqual"])
def _compared_tf(n: Node) -> Results:
    """Shapes that do not broadcast are unequal as a whole if the node says so."""
    try:
        np.broadcast_shapes(n.desc(0).shape, n.desc(1).shape)
    except ValueError:
        if n.attr("incompatible_shape_error", True):
            raise
        return n.builder.constant(np.bool_(n.type == "NotEqual"))
    return n.op(n.type, n.inputs[0], n.inputs[1])


@plugin(tensorflow="Pow")
def _pow_tf(n: Node) -> Results:
    """Negative powers of integers are errors, which a kernel cannot raise."""
    known, dtype = n.maybe_const(1), n.desc().dtype
    if dtype.startswith("int") and (known is None or (known.size and known.min() < 0)):
        raise Unsupported("powers of integers that may be negative", "make the exponent a constant, or cast")
    return n.op("Pow", n.inputs[0], n.inputs[1])


_DIVISIONS = {
    "Div": "Div",
    "RealDiv": "Div",
    "FloorDiv": "FloorDiv",
    "FloorMod": "Mod",
    "Mod": "FMod",
    "TruncateMod": "FMod",
}


@plugin(tensorflow=list(_DIVISIONS))
def _divided(n: Node) -> Results:
    """Integer division by zero is an error."""
    return n.op(_DIVISIONS[n.type], n.inputs[0], nonzero(n.builder, n.inputs[1], n.inputs[0]))


@plugin(tensorflow="TruncateDiv")
def _truncated_quotient(n: Node) -> Results:
    quotient = n.op("Div", n.inputs[0], nonzero(n.builder, n.inputs[1], n.inputs[0]))
    return n.op("Trunc", quotient) if n.desc().dtype in FLOATS else quotient


@plugin(tensorflow=["LeftShift", "RightShift"])
def _shifted(n: Node) -> Results:
    """Shift counts outside the width of the type are clamped, as in TensorFlow."""
    kind = numpy_dtype(n.desc().dtype)
    zero, most = np.zeros((), kind), np.asarray(8 * kind.itemsize - 1, kind)
    amount = n.op("Minimum", n.op("Maximum", n.inputs[1], zero), most)
    return n.op("ShiftLeft" if n.type == "LeftShift" else "ShiftRight", n.inputs[0], amount)


@plugin(tensorflow="ApproximateEqual")
def _approximately_equal(n: Node) -> Results:
    return n.op("Less", n.op("Abs", n.op("Sub", n.inputs[0], n.inputs[1])), float(n.attr("tolerance", 1e-5)))


def _where_zero(n: Node, index: int, value: Any, type_: str, *operands: Any) -> Any:
    """An operator's result, but `value` where an input is zero, even if the operator gives NaN there."""
    zero = n.op("Equal", n.inputs[index], 0.0)
    return n.op("Select", zero, value, n.op(type_, *operands))


@plugin(tensorflow="Digamma")
def _digamma(n: Node) -> Results:
    """NaN at zero as at the other poles; the operator returns a one-sided limit."""
    return _where_zero(n, 0, np.asarray(np.nan, numpy_dtype(n.desc().dtype)), "Digamma", n.inputs[0])


@plugin(tensorflow="DivNoNan")
def _div_no_nan(n: Node) -> Results:
    return _where_zero(n, 1, _zero(n), "Div", n.inputs[0], n.inputs[1])


@plugin(tensorflow="MulNoNan")
def _mul_no_nan(n: Node) -> Results:
    return _where_zero(n, 1, _zero(n), "Mul", n.inputs[0], n.inputs[1])


@plugin(tensorflow="Xdivy")
def _xdivy(n: Node) -> Results:
    return _where_zero(n, 0, _zero(n), "Div", n.inputs[0], n.inputs[1])


@plugin(tensorflow=["Xlogy", "Xlog1py"])
def _xlogy(n: Node) -> Results:
    log = n.op("Log" if n.type == "Xlogy" else "Log1p", n.inputs[1])
    return _where_zero(n, 0, _zero(n), "Mul", n.inputs[0], log)


def _zero(n: Node) -> Any:
    return np.zeros((), numpy_dtype(n.desc().dtype))


@plugin(tensorflow="ClipByValue")
def _clip_by_value(n: Node) -> Results:
    """The lower bound wins where the bounds are in the wrong order; a bound that is NaN has no effect."""
    low, high = n.maybe_const(1), n.maybe_const(2)
    small = n.desc().dtype in FLOATS | {"int8", "int16", "int32", "uint8", "uint16", "uint32"}
    if small and low is not None and high is not None and low.size == high.size == 1 and np.all(low <= high):
        return n.op("Clip", n.inputs[0], min=float(low.reshape(())), max=float(high.reshape(())))
    y = n.op("Select", n.op("Greater", n.inputs[0], n.inputs[2]), n.inputs[2], n.inputs[0])
    return n.op("Select", n.op("Less", y, n.inputs[1]), n.inputs[1], y)


@plugin(tensorflow=["AddN", "AccumulateNV2"])
def _add_n(n: Node) -> Results:
    total = n.inputs[0]
    for value in n.inputs[1:]:
        total = n.op("Add", total, value)
    return total  # type: ignore[return-value]


@plugin(tensorflow="Select")
def _select_rows(n: Node) -> Results:
    """A vector of conditions selects whole rows."""
    condition, rank = n.inputs[0], n.desc(1).rank
    if n.desc(0).rank == 1 and rank > 1:
        condition = n.op("Reshape", condition, shape=[n.desc(0).shape[0]] + [1] * (rank - 1))
    return n.op("Select", condition, n.inputs[1], n.inputs[2])


@plugin(tensorflow="BiasAdd")
def _bias_add(n: Node) -> Results:
    """The bias runs along the channels: the last axis, or the second one for NC… data."""
    bias, rank = n.inputs[1], n.desc().rank
    if str(n.attr("data_format", "NHWC")).startswith("NC") and rank > 2:
        bias = n.op("Reshape", bias, shape=[n.desc(1).shape[0]] + [1] * (rank - 2))
    return n.op("Add", n.inputs[0], bias)


@plugin(tensorflow="Cross")
def _cross(n: Node) -> Results:
    """The cross product along the last axis, of three elements."""
    if n.desc(0).shape != n.desc(1).shape or n.desc(0).shape[-1:] != (3,):
        raise Unsupported(f"the cross product of {n.desc(0)} and {n.desc(1)}", "give triples of one shape")
    a, b = n.inputs[0], n.inputs[1]

    def turned(x: Any, by: int) -> Any:
        return n.op("Roll", x, shifts=[-by], axes=[-1])

    left = n.op("Mul", turned(a, 1), turned(b, 2))
    return n.op("Sub", left, n.op("Mul", turned(a, 2), turned(b, 1)))


# -- ONNX before version 7: the second operand is placed by an attribute -----------------------------------

_PLACED = {
    "Add": "Add",
    "Sub": "Sub",
    "Mul": "Mul",
    "Div": "Div",
    "And": "And",
    "Or": "Or",
    "Xor": "Xor",
    "Equal": "Equal",
    "Less": "Less",
    "Greater": "Greater",
    "Pow": "Pow",
    "PRelu": "PRelu",
}


@plugin(onnx=list(_PLACED), since=1)
def _placed(n: Node) -> Results:
    """`axis` is the axis of the first operand that matches the second's first axis; a slope is along channels."""
    first, second = n.desc(0).shape, n.desc(1).shape
    axis = n.attr("axis", 1 if n.type == "PRelu" and len(second) == 1 else None)
    b = n.inputs[1]
    if axis is not None and len(second) < len(first):
        axis = axis % len(first)
        b = n.op("Reshape", b, shape=[*second, *[1] * (len(first) - axis - len(second))])
    if n.type == "Div":
        b = divisor_of(n, b, n.inputs[0])
    return n.op(_PLACED[n.type], n.inputs[0], b)


@plugin(onnx=[name for name in _PLACED if name != "Pow"], since=7)
def _aligned(n: Node) -> Results:
    b = divisor_of(n, n.inputs[1], n.inputs[0]) if n.type == "Div" else n.inputs[1]
    return n.op(_PLACED[n.type], n.inputs[0], b)


@plugin(tensorflow="BiasAddGrad")
def _bias_add_grad(n: Node) -> Results:
    """The sum over all axes but the channels."""
    rank = n.desc().rank
    channel = 1 if str(n.attr("data_format", "NHWC")).startswith("NC") and rank > 2 else rank - 1
    return n.op("ReduceSum", n.inputs[0], axes=[i for i in range(rank) if i != channel])
