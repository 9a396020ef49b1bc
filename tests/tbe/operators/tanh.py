"""The hyperbolic tangent by exponentials."""

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


@register_operator_compute("Tanh", op_mode="dynamic", support_fusion=True)
def tanh_compute(x, y, kernel_name="tanh"):
    """What tanh computes."""
    dtype = x.dtype
    wide = tbe.cast_to(x, "float32")
    twice = tbe.vexp(tbe.vmuls(tbe.vabs(wide), -2.0))
    magnitude = tbe.vdiv(tbe.vadds(tbe.vmuls(twice, -1.0), 1.0), tbe.vadds(twice, 1.0))
    res = tbe.vcmpsel(wide, 0.0, "lt", tbe.vmuls(magnitude, -1.0), magnitude)
    return tbe.cast_to(res, dtype)


@register_operator("Tanh")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def tanh(x, y, kernel_name="tanh"):
    """Build tanh for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float16", "float32", "bfloat16"), param_name="x")
    cases = classify([x], OpPatternMode.ELEWISE)
    schedules, tensors = [], []
    for (case_x,) in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            res = tanh_compute(data_x, y, kernel_name)
            tensors.append([data_x, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
