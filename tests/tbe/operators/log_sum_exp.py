"""Log of the sum of exponentials."""

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


@register_operator_compute("LogSumExp", op_mode="dynamic", support_fusion=True)
def log_sum_exp_compute(x, y, axis, kernel_name="log_sum_exp"):
    """What log_sum_exp computes."""
    shape = shape_util.shape_to_list(x.shape)
    top = tbe.reduce_max(x, axis, True)
    total = tbe.reduce_sum(tbe.vexp(tbe.vsub(x, tbe.broadcast(top, shape))), axis, True)
    return tbe.vadd(tbe.vlog(total), top)


@register_operator("LogSumExp")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_ATTR_LIST_INT,
    para_check.KERNEL_NAME,
)
def log_sum_exp(x, y, axis, kernel_name="log_sum_exp"):
    """Build log_sum_exp for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    cases = classify([x], OpPatternMode.NORM)
    schedules, tensors = [], []
    for (case_x,) in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            res = log_sum_exp_compute(data_x, y, axis, kernel_name)
            tensors.append([data_x, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
