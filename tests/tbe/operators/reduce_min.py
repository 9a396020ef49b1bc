"""The minimum over axes."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("reduce_min", op_mode="static")
def reduce_min_compute(x, y, axis, keep_dims=False, kernel_name="reduce_min"):
    """What reduce_min computes."""
    return dsl.reduce_min(x, axis, keep_dims)


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_ATTR_LIST_INT,
    para_check.OPTION_ATTR_BOOL,
    para_check.KERNEL_NAME,
)
def reduce_min(x, y, axis, keep_dims=False, kernel_name="reduce_min"):
    """Build reduce_min for the given descriptions."""
    para_check.check_dtype(
        x.get("dtype").lower(), ("float16", "float32", "bfloat16", "int32"), param_name="x"
    )
    para_check.check_shape(x.get("shape"), param_name="x")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    res = reduce_min_compute(data_x, y, axis, keep_dims, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, res]})
