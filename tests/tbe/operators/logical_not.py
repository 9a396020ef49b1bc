"""The opposite."""

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


@register_operator_compute("LogicalNot", op_mode="dynamic", support_fusion=True)
def logical_not_compute(x, y, kernel_name="logical_not"):
    """What logical_not computes."""
    return tbe.vlogic(x, operation="logic_not")


@register_operator("LogicalNot")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def logical_not(x, y, kernel_name="logical_not"):
    """Build logical_not for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("bool",), param_name="x")
    cases = classify([x], OpPatternMode.ELEWISE)
    schedules, tensors = [], []
    for (case_x,) in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            res = logical_not_compute(data_x, y, kernel_name)
            tensors.append([data_x, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
