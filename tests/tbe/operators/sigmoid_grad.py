"""dy * y * (1 - y)."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("sigmoid_grad", op_mode="static")
def sigmoid_grad_compute(y, dy, z, kernel_name="sigmoid_grad"):
    """What sigmoid_grad computes."""
    return dsl.vmul(dy, dsl.vmul(y, dsl.vadds(dsl.vmuls(y, -1.0), 1.0)))


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def sigmoid_grad(y, dy, z, kernel_name="sigmoid_grad"):
    """Build sigmoid_grad for the given descriptions."""
    para_check.check_dtype(y.get("dtype").lower(), ("float16", "float32"), param_name="y")
    para_check.check_shape(y.get("shape"), param_name="y")
    para_check.check_shape(dy.get("shape"), param_name="dy")
    data_y = tvm.placeholder(
        shape_util.shape_to_list(y.get("shape")), name="data_y", dtype=y.get("dtype").lower()
    )
    data_dy = tvm.placeholder(
        shape_util.shape_to_list(dy.get("shape")), name="data_dy", dtype=dy.get("dtype").lower()
    )
    res = sigmoid_grad_compute(data_y, data_dy, z, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_y, data_dy, res]})
