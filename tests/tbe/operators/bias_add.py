"""a vector added to every row."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("bias_add", op_mode="static")
def bias_add_compute(x, bias, y, kernel_name="bias_add"):
    """What bias_add computes."""
    bias = dsl.broadcast(bias, shape_util.shape_to_list(x.shape))
    return dsl.vadd(x, bias)


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def bias_add(x, bias, y, kernel_name="bias_add"):
    """Build bias_add for the given descriptions."""
    para_check.check_dtype(
        x.get("dtype").lower(), ("float16", "float32", "bfloat16", "int32"), param_name="x"
    )
    para_check.check_shape(x.get("shape"), param_name="x")
    para_check.check_shape(bias.get("shape"), param_name="bias")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    data_bias = tvm.placeholder(
        shape_util.shape_to_list(bias.get("shape")), name="data_bias", dtype=bias.get("dtype").lower()
    )
    res = bias_add_compute(data_x, data_bias, y, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, data_bias, res]})
