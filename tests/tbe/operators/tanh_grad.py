"""dy * (1 - y * y)."""

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


@register_operator_compute("TanhGrad", op_mode="dynamic", support_fusion=True)
def tanh_grad_compute(y, dy, z, kernel_name="tanh_grad"):
    """What tanh_grad computes."""
    return tbe.vmul(dy, tbe.vadds(tbe.vmuls(tbe.vmul(y, y), -1.0), 1.0))


@register_operator("TanhGrad")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def tanh_grad(y, dy, z, kernel_name="tanh_grad"):
    """Build tanh_grad for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(y.get("dtype").lower(), ("float16", "float32", "bfloat16"), param_name="y")
    cases = classify([y, dy], OpPatternMode.ELEWISE)
    schedules, tensors = [], []
    for case_y, case_dy in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_y, case_dy])
            data_y = tvm.placeholder(shapes[0], name="data_y", dtype=y.get("dtype").lower())
            data_dy = tvm.placeholder(shapes[1], name="data_dy", dtype=dy.get("dtype").lower())
            res = tanh_grad_compute(data_y, data_dy, z, kernel_name)
            tensors.append([data_y, data_dy, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
