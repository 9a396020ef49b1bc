"""x, or a part of it where it is negative."""

from impl.util.platform_adapter import (
    OpPatternMode,
    classify,
    para_check,
    register_operator,
    register_operator_compute,
    shape_util,
    tbe,
    tvm,
)


@register_operator_compute("LeakyRelu", op_mode="dynamic", support_fusion=True)
def leaky_relu_compute(x, y, negative_slope=0.01, kernel_name="leaky_relu"):
    """What leaky_relu computes."""
    return tbe.vlrelu(x, negative_slope)


@register_operator("LeakyRelu")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def leaky_relu(x, y, negative_slope=0.01, kernel_name="leaky_relu"):
    """Build leaky_relu for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float16", "float32"), param_name="x")
    cases = classify([x], OpPatternMode.ELEWISE)
    schedules, tensors = [], []
    for (case_x,) in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            res = leaky_relu_compute(data_x, y, negative_slope, kernel_name)
            tensors.append([data_x, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
