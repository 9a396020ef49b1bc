"""The first half of the columns gated by the second."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("glu", op_mode="static")
def glu_compute(x, y, kernel_name="glu"):
    """What glu computes."""
    columns = shape_util.shape_to_list(x.shape)[1]
    value, gate = dsl.split(x, 1, [columns // 2, columns // 2])
    return dsl.vdiv(value, dsl.vadds(dsl.vexp(dsl.vmuls(gate, -1.0)), 1.0))


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def glu(x, y, kernel_name="glu"):
    """Build glu for the given descriptions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    para_check.check_shape(x.get("shape"), param_name="x")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    res = glu_compute(data_x, y, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, res]})
