"""Quadratic near 0, linear beyond sigma."""

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


@register_operator_compute("SmoothL1Loss", op_mode="dynamic", support_fusion=True)
def smooth_l1_loss_compute(predict, label, y, sigma=1.0, kernel_name="smooth_l1_loss"):
    """What smooth_l1_loss computes."""
    difference = tbe.vabs(tbe.vsub(predict, label))
    near = tbe.vmuls(tbe.vmul(difference, difference), 0.5 / sigma)
    far = tbe.vadds(difference, -0.5 * sigma)
    return tbe.vcmpsel(difference, sigma, "lt", near, far)


@register_operator("SmoothL1Loss")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def smooth_l1_loss(predict, label, y, sigma=1.0, kernel_name="smooth_l1_loss"):
    """Build smooth_l1_loss for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(predict.get("dtype").lower(), ("float32",), param_name="predict")
    cases = classify([predict, label], OpPatternMode.ELEWISE)
    schedules, tensors = [], []
    for case_predict, case_label in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_predict, case_label])
            data_predict = tvm.placeholder(shapes[0], name="data_predict", dtype=predict.get("dtype").lower())
            data_label = tvm.placeholder(shapes[1], name="data_label", dtype=label.get("dtype").lower())
            res = smooth_l1_loss_compute(data_predict, data_label, y, sigma, kernel_name)
            tensors.append([data_predict, data_label, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
