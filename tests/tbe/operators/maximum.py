"""The greater of x1 and x2."""

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


@register_operator_compute("Maximum", op_mode="dynamic", support_fusion=True)
def maximum_compute(x1, x2, y, kernel_name="maximum"):
    """What maximum computes."""
    shape_x, shape_y, shape_max = shape_util.broadcast_shapes(
        shape_util.shape_to_list(x1.shape), shape_util.shape_to_list(x2.shape)
    )
    x1 = tbe.broadcast(tbe.reshape(x1, shape_x), shape_max)
    x2 = tbe.broadcast(tbe.reshape(x2, shape_y), shape_max)
    return tbe.vmax(x1, x2)


@register_operator("Maximum")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def maximum(x1, x2, y, kernel_name="maximum"):
    """Build maximum for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(
        x1.get("dtype").lower(), ("float16", "float32", "bfloat16", "int32"), param_name="x1"
    )
    cases = classify([x1, x2], OpPatternMode.ELEWISE_WITH_BROADCAST)
    schedules, tensors = [], []
    for case_x1, case_x2 in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x1, case_x2])
            data_x1 = tvm.placeholder(shapes[0], name="data_x1", dtype=x1.get("dtype").lower())
            data_x2 = tvm.placeholder(shapes[1], name="data_x2", dtype=x2.get("dtype").lower())
            res = maximum_compute(data_x1, data_x2, y, kernel_name)
            tensors.append([data_x1, data_x2, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
