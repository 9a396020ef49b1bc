"""The mean over pairs of columns, by index and a reduction axis."""

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


@register_operator_compute("SpaceAverage", op_mode="dynamic", support_fusion=True)
def space_average_compute(x, y, kernel_name="space_average"):
    """What space_average computes."""
    rows, columns = x.shape
    pair = tvm.reduce_axis((0, 2), name="pair")
    summed = tvm.compute(
        (rows, columns // 2), lambda i, j: tvm.sum(x(i, 2 * j + pair), axis=pair), name="summed"
    )
    return tbe.vmuls(summed, 0.5)


@register_operator("SpaceAverage")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def space_average(x, y, kernel_name="space_average"):
    """Build space_average for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    cases = classify([x], OpPatternMode.NORM)
    schedules, tensors = [], []
    for (case_x,) in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            res = space_average_compute(data_x, y, kernel_name)
            tensors.append([data_x, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
