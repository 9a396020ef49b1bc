"""Elementwise operators: one value in, one value out, per position."""

from __future__ import annotations

import tbe

from ge.ir.types import BOOL, FLOATS, NUMBERS, TENSORS
from ge.ops.base import Attr, Input, NodeView, Operator, Output, Pattern, register
from ge.parsers.plugin import Node, plugin, simple


class Unary(Operator):
    """A function of one value."""

    x = Input("T", NUMBERS)
    y = Output("T")
    pattern = Pattern.ELEMENTWISE


def _unary(type_: str, function: str, dtypes: frozenset[str] = FLOATS, **frameworks: str | list[str]) -> None:
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.unary(function, x)

    body = {
        "__doc__": f"{function}(x), per element.",
        "__module__": __name__,
        "x": Input("T", dtypes),
        "compute": staticmethod(compute),
    }
    register(type(type_, (Unary,), body))
    simple(type_, **frameworks)


# type, tbe function, element types, framework names
_unary("Abs", "abs", NUMBERS, onnx="Abs", tensorflow="Abs")
_unary("Neg", "neg", NUMBERS, onnx="Neg", tensorflow="Neg")
_unary("Exp", "exp", onnx="Exp", tensorflow="Exp")
_unary("Relu", "relu", NUMBERS, onnx="Relu", tensorflow="Relu")
_unary("Not", "not", BOOL, onnx="Not", tensorflow="LogicalNot")


@register
class Cast(Operator):
    """x converted to another element type; floats to integers truncate."""

    x = Input("T", TENSORS)
    to = Attr(str, choices=tuple(sorted(TENSORS)))
    y = Output()
    pattern = Pattern.ELEMENTWISE

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.cast(x, op.to)


@register
class LeakyRelu(Unary):
    """x where positive, else alpha * x."""

    x = Input("T", FLOATS)
    alpha = Attr(float, 0.01)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        slope = tbe.constant(op.alpha, x.dtype)
        return tbe.select(tbe.binary("ge", x, tbe.constant(0, x.dtype)), x, tbe.binary("mul", x, slope))


@plugin(onnx="LeakyRelu")
def _leaky_relu_onnx(n: Node):  # type: ignore[no-untyped-def]
    return n.op("LeakyRelu", n.inputs[0], alpha=n.attr("alpha", 0.01))


@plugin(tensorflow="LeakyRelu")
def _leaky_relu_tf(n: Node):  # type: ignore[no-untyped-def]
    return n.op("LeakyRelu", n.inputs[0], alpha=n.attr("alpha", 0.2))
