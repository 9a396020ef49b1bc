"""One over the square root."""

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


@register_operator_compute("Rsqrt", op_mode="dynamic", support_fusion=True)
def rsqrt_compute(x, y, kernel_name="rsqrt"):
    """What rsqrt computes."""
    return tbe.vrec(tbe.vsqrt(x))


@register_operator("Rsqrt")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def rsqrt(x, y, kernel_name="rsqrt"):
    """Build rsqrt for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    cases = classify([x], OpPatternMode.ELEWISE)
    schedules, tensors = [], []
    for (case_x,) in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            res = rsqrt_compute(data_x, y, kernel_name)
            tensors.append([data_x, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
