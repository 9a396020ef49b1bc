"""An operator in this project's own form, with a gradient."""

import tbe
from ge import ops


@ops.register
class KitSwoosh(ops.Operator):
    """x * sigmoid(beta * x)."""

    x = ops.Input("T", ops.FLOATS)
    y = ops.Output("T")
    beta = ops.Attr(float, 1.0)

    @staticmethod
    def compute(op, x):
        return x * tbe.unary("sigmoid", x * op.beta)

    @staticmethod
    def gradient(op, inputs, outputs, grads):
        (x,), (dy,) = inputs, grads
        s = ops.sigmoid(x * op.beta)
        return [dy * (s + x * op.beta * s * (1.0 - s))]


ops.simple("KitSwoosh", tensorflow="KitSwoosh", onnx="kit::1::Swoosh", aten="kit.swoosh", attrs=["beta"])
