"""One operator of a framework, several of ours: x + (2 x) ** 3 * scale."""

from ge import ops


@ops.plugin(onnx="kit::1::Residual", tensorflow="KitResidual", aten="kit.residual")
def residual(n):
    x = n.inputs[0]
    return n.op("Add", x, n.op("Mul", n.op("Cube", n.op("Mul", x, 2.0)), float(n.attr("scale", 1.0))))


ops.simple("Cube", aten="kit.cube")
ops.simple("KeepPositive", aten="kit.keep_positive")
ops.simple("WeightedSum", aten="kit.weighted_sum", attrs=["weights", "negate"])
