"""The sum of target * (log target - x) over all elements by row."""

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


@register_operator_compute("KlDiv", op_mode="dynamic", support_fusion=True)
def kl_div_compute(x, target, y, kernel_name="kl_div"):
    """What kl_div computes."""
    pointwise = tbe.vmul(target, tbe.vsub(tbe.vlog(target), x))
    return tbe.reduce_sum(pointwise, axis=-1, keepdims=False)


@register_operator("KlDiv")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def kl_div(x, target, y, kernel_name="kl_div"):
    """Build kl_div for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    cases = classify([x, target], OpPatternMode.NORM)
    schedules, tensors = [], []
    for case_x, case_target in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x, case_target])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            data_target = tvm.placeholder(shapes[1], name="data_target", dtype=target.get("dtype").lower())
            res = kl_div_compute(data_x, data_target, y, kernel_name)
            tensors.append([data_x, data_target, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
