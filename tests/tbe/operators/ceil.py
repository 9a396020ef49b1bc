"""The next integer above."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("ceil", op_mode="static")
def ceil_compute(x, y, kernel_name="ceil"):
    """What ceil computes."""
    return dsl.cast_to(dsl.ceil(x), x.dtype)


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def ceil(x, y, kernel_name="ceil"):
    """Build ceil for the given descriptions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float16", "float32"), param_name="x")
    para_check.check_shape(x.get("shape"), param_name="x")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    res = ceil_compute(data_x, y, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, res]})
