"""Activation functions: elementwise operators with parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tbe
from ge.ir.types import FLOATS, NUMBERS
from ge.ops.base import Attr, Input, NodeView, register
from ge.ops.math.derivatives import derived
from ge.ops.math.elementwise import Unary
from ge.ops.math.reduce import exact_float, widened
from ge.ops.plugins import Node, Results, Unsupported, plugin, simple
from ge.ops.traits import Cost, Epilogue, Formula

_SELU_ALPHA = 1.6732632423543772
_SELU_GAMMA = 1.0507009873554805
_NORMAL = {"none": "normal_excess", "tanh": "tanh_normal_excess"}
_GELU_SLOPE = {"none": "gelu_slope", "tanh": "tanh_gelu_slope"}


class Activation(Unary):
    """A function of one real value, with parameters."""

    x = Input("T", FLOATS)
    formula = Formula.CURVE


@register
class LeakyRelu(Activation):
    """x where positive, else alpha * x."""

    alpha = Attr(float, 0.01)
    epilogue = Epilogue("leaky,{alpha!r}", {0.0: None})  # 0 * -inf is NaN, and Relu's 0 is not

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.select(x >= 0, x, x * op.alpha)


@register
class Elu(Activation):
    """x where positive, else alpha * (exp(x) - 1)."""

    alpha = Attr(float, 1.0)
    epilogue = Epilogue("elu,{alpha!r}")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.select(x >= 0, x, tbe.unary("expm1", x) * op.alpha)


@register
class Selu(Activation):
    """gamma * (x where positive, else alpha * (exp(x) - 1))."""

    alpha = Attr(float, _SELU_ALPHA)
    gamma = Attr(float, _SELU_GAMMA)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.select(x > 0, x * op.gamma, tbe.unary("expm1", x) * (op.alpha * op.gamma))


@register
class Celu(Activation):
    """max(x, 0) + min(0, alpha * (exp(x / alpha) - 1))."""

    alpha = Attr(float, 1.0)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.select(x >= 0, x, tbe.unary("expm1", x / op.alpha) * op.alpha)


@register
class Gelu(Activation):
    """x times the normal distribution function of x, exactly or by the tanh approximation."""

    approximate = Attr(str, "none", choices=("none", "tanh"))
    cost = Cost.SLOW
    epilogue = Epilogue("gelu_{approximate}", {"none": "erf"})

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        wide = widened(x)  # rounded once, which is also faster
        if op.approximate == "none" and wide.dtype != x.dtype:
            share = tbe.unary("narrow_normal_share", wide)
        else:
            share = tbe.unary(_NORMAL[op.approximate], wide) + 0.5
        return tbe.cast(wide * share, x.dtype)


@register
class GeluSlope(Activation):
    """The derivative of Gelu."""

    approximate = Attr(str, "none", choices=("none", "tanh"))
    narrow = Attr(bool, False)  # as precise as a consumer that rounds to 16 bits needs
    cost = Cost.SLOW

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        wide = widened(x)
        if op.narrow or wide.dtype != x.dtype:
            return tbe.cast(tbe.unary(f"narrow_{_GELU_SLOPE[op.approximate]}", wide), x.dtype)
        return tbe.unary(_GELU_SLOPE[op.approximate], wide) + 0.5


@register
class HardSigmoid(Activation):
    """alpha * x + beta, clipped to 0..1."""

    alpha = Attr(float, 0.2)
    beta = Attr(float, 0.5)
    epilogue = Epilogue("hardsigmoid,{alpha!r},{beta!r}")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return _clip(x * op.alpha + op.beta, 0, 1)


@register
class HardSwish(Activation):
    """x * clip(x / 6 + 1 / 2, 0, 1)."""

    epilogue = Epilogue("hardswish")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return x * _clip(x * (1 / 6) + 0.5, 0, 1)


@register
class Mish(Activation):
    """x * tanh(softplus(x))."""

    epilogue = Epilogue("mish")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return x * tbe.unary("tanh", tbe.unary("softplus", x))


@register
class Swish(Activation):
    """x * sigmoid(beta * x)."""

    beta = Attr(float, 1.0)
    epilogue = Epilogue("swish,{beta!r}")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return x * tbe.unary("sigmoid", x if op.beta == 1 else x * op.beta)


@register
class Softsign(Activation):
    """x / (1 + |x|)."""

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return x / (tbe.unary("abs", x) + 1)


@register
class ThresholdedRelu(Activation):
    """x where greater than alpha, else 0."""

    alpha = Attr(float, 1.0)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.select(x > op.alpha, x, 0)


@register
class Shrink(Unary):
    """x drawn towards zero by bias outside of -lambd..lambd, 0 inside."""

    lambd = Attr(float, 0.5)
    bias = Attr(float, 0.0)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        wide = x if x.dtype in FLOATS else tbe.cast(x, exact_float(x.dtype))
        outside = tbe.select(wide > op.lambd, wide - op.bias, 0)
        return tbe.cast(tbe.select(wide < -op.lambd, wide + op.bias, outside), x.dtype)


@register
class Clip(Unary):
    """x limited to min..max; either may be absent."""

    x = Input("T", NUMBERS)
    min = Attr(float, None)
    max = Attr(float, None)
    formula = Formula.CURVE
    epilogue = Epilogue("clip,{min!r},{max!r}")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return _clip(x, op.min, op.max)


def _clip(x: tbe.Tensor, low: float | None, high: float | None) -> tbe.Tensor:
    if low is not None:
        x = tbe.binary("max", x, _bound(x, low))
    return x if high is None else tbe.binary("min", x, _bound(x, high))


def _bound(x: tbe.Tensor, value: float) -> float | int:
    """A bound as a number of x's type, saturated for integers."""
    if x.dtype in FLOATS:
        return value
    kind = tbe.dtype_of(x.dtype)
    return int(min(max(value, kind.min), kind.max))


def _attributes(type_: str, onnx: str, **defaults: float) -> None:
    """Map an ONNX activation whose attributes have the same names."""

    @plugin(onnx=onnx)
    def mapped(n: Node) -> Results:
        return n.op(type_, n.inputs[0], **{k: float(n.attr(k, v)) for k, v in defaults.items()})


_attributes("LeakyRelu", "LeakyRelu", alpha=0.01)
_attributes("Elu", "Elu", alpha=1.0)
_attributes("Selu", "Selu", alpha=_SELU_ALPHA, gamma=_SELU_GAMMA)
_attributes("Celu", "Celu", alpha=1.0)
_attributes("HardSigmoid", "HardSigmoid", alpha=0.2, beta=0.5)
_attributes("ThresholdedRelu", "ThresholdedRelu", alpha=1.0)
_attributes("Shrink", "Shrink", lambd=0.5, bias=0.0)
simple("HardSwish", onnx="HardSwish", aten="hardswish")
simple("Mish", onnx="Mish", aten="mish")
simple("Swish", aten="silu")
simple("LeakyRelu", attrs={"alpha": "negative_slope"}, aten="leaky_relu")
simple("Gelu", attrs=["approximate"], onnx="Gelu", aten="gelu")
simple("Softsign", onnx="Softsign", tensorflow="Softsign")
simple("Elu", tensorflow="Elu")
simple("Selu", tensorflow="Selu")


@plugin(onnx="Swish")
def _swish(n: Node) -> Results:
    return n.op("Swish", n.inputs[0], beta=float(n.attr("alpha", 1.0)))


@plugin(tensorflow="LeakyRelu")
def _leaky_relu_tf(n: Node) -> Results:
    return n.op("LeakyRelu", n.inputs[0], alpha=n.attr("alpha", 0.2))


@plugin(tensorflow="Relu6")
def _relu6(n: Node) -> Results:
    return n.op("Clip", n.inputs[0], min=0.0, max=6.0)


@plugin(onnx="Clip")
def _clip_attributes(n: Node) -> Results:
    return n.op("Clip", n.inputs[0], min=n.attr("min"), max=n.attr("max"))


@plugin(onnx="Clip", since=11)
def _clip_inputs(n: Node) -> Results:
    """Constant bounds become attributes, computed ones separate operators; the upper one comes last and prevails."""
    x: Any = n.inputs[0]
    small = n.desc().dtype in FLOATS | {"int8", "int16", "int32", "uint8", "uint16", "uint32"}
    known = [n.maybe_const(i) if small else None for i in (1, 2)]
    given = {k: float(b.reshape(())) for k, b in zip(("min", "max"), known, strict=True) if b is not None}
    if len(given) == 2:
        return n.op("Clip", x, **given)
    for index, (name, type_) in enumerate((("min", "Maximum"), ("max", "Minimum")), 1):
        if name in given:
            x = n.op("Clip", x, **{name: given[name]})
        elif n.input(index) is not None:
            x = n.op(type_, x, n.input(index))
    return x


# -- TensorFlow: derivatives, given the incoming gradient --------------------------------------------------


def _gradient(name: str, function: Callable[[Node, Any, Any], Any]) -> None:
    """Map a gradient operator of two inputs."""

    @plugin(tensorflow=name)
    def mapped(n: Node) -> Results:
        if n.desc(0).shape != n.desc(1).shape:
            raise Unsupported(f"{name} of {n.desc(0)} and {n.desc(1)}", "give both one shape")
        return function(n, n.inputs[0], n.inputs[1])


def _gated(n: Node, g: Any, active: Any) -> Any:
    """A gradient times one or zero, as in TensorFlow: non-finite values become NaN where a unit is inactive."""
    return n.op("Mul", g, n.op("Cast", active, to=n.desc(0).dtype))


def _relu6_gradient(n: Node, g: Any, x: Any) -> Any:
    return _gated(n, g, n.op("And", n.op("Greater", x, 0.0), n.op("Less", x, 6.0)))


def _leaky_relu_gradient(n: Node, g: Any, x: Any) -> Any:
    return n.op("Select", n.op("Greater", x, 0.0), g, n.op("Mul", g, float(n.attr("alpha", 0.2))))


def _elu_gradient(n: Node, g: Any, y: Any) -> Any:
    return n.op("Select", n.op("Less", y, 0.0), n.op("Mul", g, n.op("Add", y, 1.0)), g)


def _selu_gradient(n: Node, g: Any, y: Any) -> Any:
    low = n.op("Mul", g, n.op("Add", y, _SELU_ALPHA * _SELU_GAMMA))
    return n.op("Select", n.op("Less", y, 0.0), low, n.op("Mul", g, _SELU_GAMMA))


def _pole_gradient(name: str, rule: Callable[..., Any]) -> None:
    """The gradient of a function with a pole: a zero gradient stays zero there, as in TensorFlow."""
    _gradient(name, lambda n, y, g: n.op("Select", n.op("Equal", g, 0.0), 0.0, rule(n, y, g)))


# Gradients of functions of x, as (gradient, x) or (gradient, y).
_gradient("ReluGrad", lambda n, g, x: _gated(n, g, n.op("Greater", x, 0.0)))
_gradient("Relu6Grad", _relu6_gradient)
_gradient("LeakyReluGrad", _leaky_relu_gradient)
_gradient("EluGrad", _elu_gradient)
_gradient("SeluGrad", _selu_gradient)
for _name in ("Softplus", "Softsign"):
    _gradient(f"{_name}Grad", lambda n, g, x, type_=_name: derived(n.op, type_, g, x))  # type: ignore[misc]
# Gradients of functions of x, as (y, gradient).
for _name in ("Sigmoid", "Tanh"):
    _gradient(f"{_name}Grad", lambda n, y, g, type_=_name: derived(n.op, type_, g, y))  # type: ignore[misc]
for _name, _type in (
    ("Sqrt", "Sqrt"),
    ("Rsqrt", "Rsqrt"),
    ("Reciprocal", "Reciprocal"),
    ("Inv", "Reciprocal"),
):
    _pole_gradient(f"{_name}Grad", lambda n, y, g, type_=_type: derived(n.op, type_, g, y))
