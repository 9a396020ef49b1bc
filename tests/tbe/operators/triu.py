"""The upper triangle of matrices, by index."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("triu", op_mode="static")
def triu_compute(x, y, diagonal=0, kernel_name="triu"):
    """What triu computes."""
    return dsl.set_value(x, lambda *i: i[-2] > i[-1] - diagonal, 0)


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.OPTION_ATTR_INT,
    para_check.KERNEL_NAME,
)
def triu(x, y, diagonal=0, kernel_name="triu"):
    """Build triu for the given descriptions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float16", "float32", "int32"), param_name="x")
    para_check.check_shape(x.get("shape"), param_name="x")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    res = triu_compute(data_x, y, diagonal, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, res]})
