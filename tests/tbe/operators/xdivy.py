"""x1 / x2, and 0 where x1 is 0."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("xdivy", op_mode="static")
def xdivy_compute(x1, x2, y, kernel_name="xdivy"):
    """What xdivy computes."""
    shape_x, shape_y, shape_max = shape_util.broadcast_shapes(
        shape_util.shape_to_list(x1.shape), shape_util.shape_to_list(x2.shape)
    )
    x1 = dsl.broadcast(dsl.reshape(x1, shape_x), shape_max)
    x2 = dsl.broadcast(dsl.reshape(x2, shape_y), shape_max)
    return dsl.vcmpsel(x1, 0.0, "eq", 0.0, dsl.vdiv(x1, x2))


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def xdivy(x1, x2, y, kernel_name="xdivy"):
    """Build xdivy for the given descriptions."""
    para_check.check_dtype(x1.get("dtype").lower(), ("float16", "float32"), param_name="x1")
    para_check.check_shape(x1.get("shape"), param_name="x1")
    para_check.check_shape(x2.get("shape"), param_name="x2")
    data_x1 = tvm.placeholder(
        shape_util.shape_to_list(x1.get("shape")), name="data_x1", dtype=x1.get("dtype").lower()
    )
    data_x2 = tvm.placeholder(
        shape_util.shape_to_list(x2.get("shape")), name="data_x2", dtype=x2.get("dtype").lower()
    )
    res = xdivy_compute(data_x1, data_x2, y, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x1, data_x2, res]})
