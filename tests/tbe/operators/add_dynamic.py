"""x1 + x2 of ranks that differ, for shapes that are told later."""

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


@register_operator_compute("AddDynamic", op_mode="dynamic", support_fusion=True)
def add_dynamic_compute(x1, x2, y, kernel_name="add_dynamic"):
    """What add_dynamic computes."""
    _, _, shape = shape_util.broadcast_shapes(
        shape_util.shape_to_list(x1.shape),
        shape_util.shape_to_list(x2.shape),
        param_name_input1="x1",
        param_name_input2="x2",
    )
    return tbe.vadd(tbe.broadcast(x1, shape), tbe.broadcast(x2, shape))


@register_operator("AddDynamic")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT, para_check.REQUIRED_INPUT, para_check.REQUIRED_OUTPUT, para_check.KERNEL_NAME
)
def add_dynamic(x1, x2, y, kernel_name="add_dynamic"):
    """Build add_dynamic for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x1.get("dtype").lower(), ("float16", "float32", "int32"), param_name="x1")
    para_check.check_elewise_shape_range([x1, x2], support_broadcast=True)
    schedules, tensors = [], []
    for case_x1, case_x2 in classify([x1, x2], OpPatternMode.ELEWISE_WITH_BROADCAST):
        with tbe.compute():
            shape_x1, shape_x2 = shape_util.variable_shape([case_x1, case_x2])
            data_x1 = tvm.placeholder(shape_x1, name="data_x1", dtype=x1.get("dtype").lower())
            data_x2 = tvm.placeholder(shape_x2, name="data_x2", dtype=x2.get("dtype").lower())
            res = add_dynamic_compute(data_x1, data_x2, y, kernel_name)
            tensors.append((data_x1, data_x2, res))
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"print_ir": False, "name": kernel_name, "tensor_list": tensors})
