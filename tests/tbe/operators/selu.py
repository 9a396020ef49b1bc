"""The scaled exponential linear unit."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("selu", op_mode="static")
def selu_compute(x, y, kernel_name="selu"):
    """What selu computes."""
    alpha, scale = 1.67326324235, 1.05070098736
    negative = dsl.vmins(x, 0.0)
    below = dsl.vmuls(dsl.vadds(dsl.vexp(negative), -1.0), alpha * scale)
    return dsl.vadd(below, dsl.vmuls(dsl.vmaxs(x, 0.0), scale))


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def selu(x, y, kernel_name="selu"):
    """Build selu for the given descriptions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    para_check.check_shape(x.get("shape"), param_name="x")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    res = selu_compute(data_x, y, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, res]})
