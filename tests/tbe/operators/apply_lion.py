"""a step of Lion; also the new momentum."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("apply_lion", op_mode="static")
def apply_lion_compute(var, m, grad, var_out, m_out, lr, beta1=0.9, beta2=0.99, kernel_name="apply_lion"):
    """What apply_lion computes."""
    mixed = dsl.vadd(dsl.vmuls(m, beta1), dsl.vmuls(grad, 1 - beta1))
    direction = dsl.vcmpsel(mixed, 0.0, "gt", 1.0, -1.0)
    direction = dsl.vcmpsel(mixed, 0.0, "eq", 0.0, direction)
    m = dsl.vadd(dsl.vmuls(m, beta2), dsl.vmuls(grad, 1 - beta2))
    return [dsl.vsub(var, dsl.vmuls(direction, lr)), m]


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_ATTR_FLOAT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def apply_lion(var, m, grad, var_out, m_out, lr, beta1=0.9, beta2=0.99, kernel_name="apply_lion"):
    """Build apply_lion for the given descriptions."""
    para_check.check_dtype(var.get("dtype").lower(), ("float32",), param_name="var")
    para_check.check_shape(var.get("shape"), param_name="var")
    para_check.check_shape(m.get("shape"), param_name="m")
    para_check.check_shape(grad.get("shape"), param_name="grad")
    data_var = tvm.placeholder(
        shape_util.shape_to_list(var.get("shape")), name="data_var", dtype=var.get("dtype").lower()
    )
    data_m = tvm.placeholder(
        shape_util.shape_to_list(m.get("shape")), name="data_m", dtype=m.get("dtype").lower()
    )
    data_grad = tvm.placeholder(
        shape_util.shape_to_list(grad.get("shape")), name="data_grad", dtype=grad.get("dtype").lower()
    )
    res = apply_lion_compute(data_var, data_m, data_grad, var_out, m_out, lr, beta1, beta2, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_var, data_m, data_grad, *res]})
