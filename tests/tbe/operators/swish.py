"""x * sigmoid(scale * x)."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("swish", op_mode="static")
def swish_compute(x, y, scale=1.0, kernel_name="swish"):
    """What swish computes."""
    return dsl.vdiv(x, dsl.vadds(dsl.vexp(dsl.vmuls(x, -scale)), 1.0))


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def swish(x, y, scale=1.0, kernel_name="swish"):
    """Build swish for the given descriptions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    para_check.check_shape(x.get("shape"), param_name="x")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    res = swish_compute(data_x, y, scale, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, res]})
