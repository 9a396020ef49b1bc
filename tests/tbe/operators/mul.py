"""x1 * x2 with broadcasting."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("mul", op_mode="static")
def mul_compute(x1, x2, y, kernel_name="mul"):
    """What mul computes."""
    shape_x, shape_y, shape_max = shape_util.broadcast_shapes(
        shape_util.shape_to_list(x1.shape), shape_util.shape_to_list(x2.shape)
    )
    x1 = dsl.broadcast(dsl.reshape(x1, shape_x), shape_max)
    x2 = dsl.broadcast(dsl.reshape(x2, shape_y), shape_max)
    return dsl.vmul(x1, x2)


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def mul(x1, x2, y, kernel_name="mul"):
    """Build mul for the given descriptions."""
    para_check.check_dtype(
        x1.get("dtype").lower(), ("float16", "float32", "bfloat16", "int32"), param_name="x1"
    )
    para_check.check_shape(x1.get("shape"), param_name="x1")
    para_check.check_shape(x2.get("shape"), param_name="x2")
    data_x1 = tvm.placeholder(
        shape_util.shape_to_list(x1.get("shape")), name="data_x1", dtype=x1.get("dtype").lower()
    )
    data_x2 = tvm.placeholder(
        shape_util.shape_to_list(x2.get("shape")), name="data_x2", dtype=x2.get("dtype").lower()
    )
    res = mul_compute(data_x1, data_x2, y, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x1, data_x2, res]})
