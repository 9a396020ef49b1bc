"""The logarithm of softmax."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("log_softmax", op_mode="static")
def log_softmax_compute(x, y, axis, kernel_name="log_softmax"):
    """What log_softmax computes."""
    shape = shape_util.shape_to_list(x.shape)
    less = dsl.vsub(x, dsl.broadcast(dsl.reduce_max(x, axis, keepdims=True), shape))
    total = dsl.vlog(dsl.reduce_sum(dsl.vexp(less), axis, keepdims=True))
    return dsl.vsub(less, dsl.broadcast(total, shape))


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_ATTR_LIST_INT,
    para_check.KERNEL_NAME,
)
def log_softmax(x, y, axis, kernel_name="log_softmax"):
    """Build log_softmax for the given descriptions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    para_check.check_shape(x.get("shape"), param_name="x")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    res = log_softmax_compute(data_x, y, axis, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, res]})
