"""x + value * a / b."""

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


@register_operator_compute("Addcdiv", op_mode="dynamic", support_fusion=True)
def addcdiv_compute(x, a, b, y, value=1.0, kernel_name="addcdiv"):
    """What addcdiv computes."""
    return tbe.vadd(x, tbe.vmuls(tbe.vdiv(a, b), value))


@register_operator("Addcdiv")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def addcdiv(x, a, b, y, value=1.0, kernel_name="addcdiv"):
    """Build addcdiv for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    cases = classify([x, a, b], OpPatternMode.ELEWISE)
    schedules, tensors = [], []
    for case_x, case_a, case_b in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x, case_a, case_b])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            data_a = tvm.placeholder(shapes[1], name="data_a", dtype=a.get("dtype").lower())
            data_b = tvm.placeholder(shapes[2], name="data_b", dtype=b.get("dtype").lower())
            res = addcdiv_compute(data_x, data_a, data_b, y, value, kernel_name)
            tensors.append([data_x, data_a, data_b, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
