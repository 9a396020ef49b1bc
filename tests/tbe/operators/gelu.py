"""x * sigmoid of a cubic, the tanh form of the Gaussian error linear unit."""

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


@register_operator_compute("Gelu", op_mode="dynamic", support_fusion=True)
def gelu_compute(x, y, kernel_name="gelu"):
    """What gelu computes."""
    dtype = x.dtype
    wide = tbe.cast_to(x, "float32")
    cube = tbe.vmul(tbe.vmul(wide, wide), wide)
    inner = tbe.vmuls(tbe.vadd(wide, tbe.vmuls(cube, 0.044715)), -1.5957691216057308)
    res = tbe.vdiv(wide, tbe.vadds(tbe.vexp(inner), 1.0))
    return tbe.cast_to(res, dtype)


@register_operator("Gelu")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def gelu(x, y, kernel_name="gelu"):
    """Build gelu for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float16", "float32", "bfloat16"), param_name="x")
    cases = classify([x], OpPatternMode.ELEWISE)
    schedules, tensors = [], []
    for (case_x,) in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            res = gelu_compute(data_x, y, kernel_name)
            tensors.append([data_x, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
