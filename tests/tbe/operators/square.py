"""x * x."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("square", op_mode="static")
def square_compute(x, y, kernel_name="square"):
    """What square computes."""
    return dsl.vmul(x, x)


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def square(x, y, kernel_name="square"):
    """Build square for the given descriptions."""
    para_check.check_dtype(
        x.get("dtype").lower(), ("float16", "float32", "bfloat16", "int32"), param_name="x"
    )
    para_check.check_shape(x.get("shape"), param_name="x")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    res = square_compute(data_x, y, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, res]})
