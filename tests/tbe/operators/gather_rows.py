"""Rows chosen by index."""

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


@register_operator_compute("GatherRows", op_mode="dynamic", support_fusion=True)
def gather_rows_compute(x, indices, y, kernel_name="gather_rows"):
    """What gather_rows computes."""
    return tbe.gather(x, indices, 0)


@register_operator("GatherRows")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def gather_rows(x, indices, y, kernel_name="gather_rows"):
    """Build gather_rows for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32", "int32"), param_name="x")
    cases = classify([x, indices], OpPatternMode.NORM)
    schedules, tensors = [], []
    for case_x, case_indices in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x, case_indices])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            data_indices = tvm.placeholder(shapes[1], name="data_indices", dtype=indices.get("dtype").lower())
            res = gather_rows_compute(data_x, data_indices, y, kernel_name)
            tensors.append([data_x, data_indices, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
