"""a step with momentum; also the new momentum."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("apply_momentum")
def apply_momentum_compute(
    var, accum, grad, var_out, accum_out, lr, momentum, use_nesterov=False, kernel_name="apply_momentum"
):
    """What apply_momentum computes."""
    accum = te.lang.cce.vadd(te.lang.cce.vmuls(accum, momentum), grad)
    if use_nesterov:
        step = te.lang.cce.vadd(te.lang.cce.vmuls(grad, lr), te.lang.cce.vmuls(accum, momentum * lr))
    else:
        step = te.lang.cce.vmuls(accum, lr)
    return [te.lang.cce.vsub(var, step), accum]


@check_op_params(
    REQUIRED_INPUT,
    REQUIRED_INPUT,
    REQUIRED_INPUT,
    REQUIRED_OUTPUT,
    REQUIRED_OUTPUT,
    REQUIRED_ATTR_FLOAT,
    REQUIRED_ATTR_FLOAT,
    OPTION_ATTR_BOOL,
    KERNEL_NAME,
)
def apply_momentum(
    var, accum, grad, var_out, accum_out, lr, momentum, use_nesterov=False, kernel_name="apply_momentum"
):
    """Build apply_momentum for the given descriptions."""
    check_dtype(var.get("dtype").lower(), ("float16", "float32"), param_name="var")
    check_shape(var.get("shape"), param_name="var")
    check_shape(accum.get("shape"), param_name="accum")
    check_shape(grad.get("shape"), param_name="grad")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    size = 1
    for dim in shape_to_list(var.get("shape")):
        size *= dim
    data_var = tvm.placeholder([size], name="data_var", dtype=var.get("dtype").lower())
    data_accum = tvm.placeholder([size], name="data_accum", dtype=accum.get("dtype").lower())
    data_grad = tvm.placeholder([size], name="data_grad", dtype=grad.get("dtype").lower())
    res = apply_momentum_compute(
        data_var, data_accum, data_grad, var_out, accum_out, lr, momentum, use_nesterov, kernel_name
    )
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(
        sch, {"name": kernel_name, "tensor_list": [data_var, data_accum, data_grad, *res], "print_ir": False}
    )
