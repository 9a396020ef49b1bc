"""The mean over axes."""

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


@register_operator_compute("ReduceMean", op_mode="dynamic", support_fusion=True)
def reduce_mean_compute(x, y, axis, keep_dims=False, kernel_name="reduce_mean"):
    """What reduce_mean computes."""
    shape = shape_util.shape_to_list(x.shape)
    count = 1
    for one in axis:
        count *= shape[one]
    wide = tbe.cast_to(x, "float32")
    return tbe.cast_to(tbe.reduce_sum(tbe.vmuls(wide, 1.0 / count), axis, keep_dims), x.dtype)


@register_operator("ReduceMean")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_ATTR_LIST_INT,
    para_check.OPTION_ATTR_BOOL,
    para_check.KERNEL_NAME,
)
def reduce_mean(x, y, axis, keep_dims=False, kernel_name="reduce_mean"):
    """Build reduce_mean for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float16", "float32"), param_name="x")
    cases = classify([x], OpPatternMode.NORM)
    schedules, tensors = [], []
    for (case_x,) in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            res = reduce_mean_compute(data_x, y, axis, keep_dims, kernel_name)
            tensors.append([data_x, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
