"""a step of Adagrad; also the new sum of squares."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("apply_adagrad", op_mode="static")
def apply_adagrad_compute(var, accum, grad, var_out, accum_out, lr, kernel_name="apply_adagrad"):
    """What apply_adagrad computes."""
    accum = dsl.vadd(accum, dsl.vmul(grad, grad))
    step = dsl.vdiv(dsl.vmuls(grad, lr), dsl.vsqrt(accum))
    return [dsl.vsub(var, step), accum]


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def apply_adagrad(var, accum, grad, var_out, accum_out, lr, kernel_name="apply_adagrad"):
    """Build apply_adagrad for the given descriptions."""
    para_check.check_dtype(var.get("dtype").lower(), ("float32",), param_name="var")
    para_check.check_shape(var.get("shape"), param_name="var")
    para_check.check_shape(accum.get("shape"), param_name="accum")
    para_check.check_shape(grad.get("shape"), param_name="grad")
    data_var = tvm.placeholder(
        shape_util.shape_to_list(var.get("shape")), name="data_var", dtype=var.get("dtype").lower()
    )
    data_accum = tvm.placeholder(
        shape_util.shape_to_list(accum.get("shape")), name="data_accum", dtype=accum.get("dtype").lower()
    )
    data_grad = tvm.placeholder(
        shape_util.shape_to_list(grad.get("shape")), name="data_grad", dtype=grad.get("dtype").lower()
    )
    res = apply_adagrad_compute(data_var, data_accum, data_grad, var_out, accum_out, lr, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_var, data_accum, data_grad, *res]})
