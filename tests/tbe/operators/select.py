"""a where the condition holds, else b."""

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


@register_operator_compute("Select", op_mode="dynamic", support_fusion=True)
def select_compute(condition, a, b, y, kernel_name="select"):
    """What select computes."""
    return tbe.vsel(condition, a, b)


@register_operator("Select")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def select(condition, a, b, y, kernel_name="select"):
    """Build select for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(a.get("dtype").lower(), ("float16", "float32", "int32"), param_name="a")
    cases = classify([condition, a, b], OpPatternMode.ELEWISE)
    schedules, tensors = [], []
    for case_condition, case_a, case_b in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_condition, case_a, case_b])
            data_condition = tvm.placeholder(
                shapes[0], name="data_condition", dtype=condition.get("dtype").lower()
            )
            data_a = tvm.placeholder(shapes[1], name="data_a", dtype=a.get("dtype").lower())
            data_b = tvm.placeholder(shapes[2], name="data_b", dtype=b.get("dtype").lower())
            res = select_compute(data_condition, data_a, data_b, y, kernel_name)
            tensors.append([data_condition, data_a, data_b, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
