"""Sums over one axis or several: the attribute is a number or a list."""

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
from impl.util.util_common import is_unknown_rank_input


@register_operator_compute("ReduceSumD", op_mode="dynamic", support_fusion=True)
def reduce_sum_d_compute(x, y, axes=None, keep_dims=False, kernel_name="reduce_sum_d"):
    """What reduce_sum_d computes."""
    wide = tbe.cast_to(x, "float32") if x.dtype == "float16" else x
    return tbe.cast_to(tbe.reduce_sum(wide, axis=axes, keepdims=keep_dims), x.dtype)


@register_operator("ReduceSumD")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    (para_check.REQUIRED_ATTR_INT, para_check.REQUIRED_ATTR_LIST_INT),
    para_check.OPTION_ATTR_BOOL,
    para_check.KERNEL_NAME,
)
def reduce_sum_d(x, y, axes=None, keep_dims=False, kernel_name="reduce_sum_d"):
    """Build reduce_sum_d for the given descriptions, which may have unknown dimensions."""
    dtype = x["dtype"].lower()
    para_check.check_dtype(dtype, ("float16", "float32", "int32"), param_name="x")
    assert not is_unknown_rank_input(x)
    axes = shape_util.axis_check(len(x["shape"]), [axes] if isinstance(axes, int) else axes)
    x["rel_pos_to_reduce"] = "before"
    axis = {"shape": [len(axes)], "value": axes, "rel_pos_to_reduce": "axis"}
    schedules, tensors = [], []
    for case_x, case_axis in classify([x, axis], OpPatternMode.REDUCE, {"keepdims": keep_dims is True}):
        with tbe.compute():
            shape = shape_util.variable_shape([case_x, case_axis], op_mode="reduce")[0]
            data = tvm.placeholder(shape, name="data", dtype=dtype)
            res = reduce_sum_d_compute(data, y, case_axis.get("value"), keep_dims, kernel_name)
            tensors.append([data, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
