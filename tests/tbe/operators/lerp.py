"""start + weight * (end - start)."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("lerp", op_mode="static")
def lerp_compute(start, end, weight, y, kernel_name="lerp"):
    """What lerp computes."""
    return dsl.vadd(start, dsl.vmul(weight, dsl.vsub(end, start)))


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def lerp(start, end, weight, y, kernel_name="lerp"):
    """Build lerp for the given descriptions."""
    para_check.check_dtype(start.get("dtype").lower(), ("float16", "float32", "bfloat16"), param_name="start")
    para_check.check_shape(start.get("shape"), param_name="start")
    para_check.check_shape(end.get("shape"), param_name="end")
    para_check.check_shape(weight.get("shape"), param_name="weight")
    data_start = tvm.placeholder(
        shape_util.shape_to_list(start.get("shape")), name="data_start", dtype=start.get("dtype").lower()
    )
    data_end = tvm.placeholder(
        shape_util.shape_to_list(end.get("shape")), name="data_end", dtype=end.get("dtype").lower()
    )
    data_weight = tvm.placeholder(
        shape_util.shape_to_list(weight.get("shape")), name="data_weight", dtype=weight.get("dtype").lower()
    )
    res = lerp_compute(data_start, data_end, data_weight, y, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_start, data_end, data_weight, res]})
