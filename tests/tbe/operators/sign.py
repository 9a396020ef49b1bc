"""-1, 0 or 1."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("sign", op_mode="static")
def sign_compute(x, y, kernel_name="sign"):
    """What sign computes."""
    zero = dsl.broadcast(tvm.const(0, x.dtype), x.shape)
    one = dsl.broadcast(tvm.const(1, x.dtype), x.shape)
    minus = dsl.vmuls(one, -1)
    positive = dsl.vsel(dsl.vcmp(x, zero, "gt", "bool"), one, zero)
    return dsl.vsel(dsl.vcmp(x, zero, "lt", "bool"), minus, positive)


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def sign(x, y, kernel_name="sign"):
    """Build sign for the given descriptions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float16", "float32", "int32"), param_name="x")
    para_check.check_shape(x.get("shape"), param_name="x")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    res = sign_compute(data_x, y, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, res]})
