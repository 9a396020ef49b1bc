"""x where it is larger than lambd, else 0."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("hard_shrink", op_mode="static")
def hard_shrink_compute(x, y, lambd=0.5, kernel_name="hard_shrink"):
    """What hard_shrink computes."""
    return dsl.vcmpsel(dsl.vabs(x), lambd, "gt", x, 0.0)


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def hard_shrink(x, y, lambd=0.5, kernel_name="hard_shrink"):
    """Build hard_shrink for the given descriptions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float16", "float32", "bfloat16"), param_name="x")
    para_check.check_shape(x.get("shape"), param_name="x")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    res = hard_shrink_compute(data_x, y, lambd, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, res]})
