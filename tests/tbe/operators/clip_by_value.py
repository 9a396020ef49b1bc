"""x limited to low .. high."""

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


@register_operator_compute("ClipByValue", op_mode="dynamic", support_fusion=True)
def clip_by_value_compute(x, y, low, high, kernel_name="clip_by_value"):
    """What clip_by_value computes."""
    return tbe.round_to(x, high, low)


@register_operator("ClipByValue")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_ATTR_FLOAT,
    para_check.REQUIRED_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def clip_by_value(x, y, low, high, kernel_name="clip_by_value"):
    """Build clip_by_value for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float16", "float32"), param_name="x")
    cases = classify([x], OpPatternMode.ELEWISE)
    schedules, tensors = [], []
    for (case_x,) in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            res = clip_by_value_compute(data_x, y, low, high, kernel_name)
            tensors.append([data_x, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
