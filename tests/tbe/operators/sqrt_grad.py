"""dy / (2 * y)."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("sqrt_grad")
def sqrt_grad_compute(y, dy, z, kernel_name="sqrt_grad"):
    """What sqrt_grad computes."""
    return te.lang.cce.vdiv(te.lang.cce.vmuls(dy, 0.5), y)


@check_op_params(REQUIRED_INPUT, REQUIRED_INPUT, REQUIRED_OUTPUT, KERNEL_NAME)
def sqrt_grad(y, dy, z, kernel_name="sqrt_grad"):
    """Build sqrt_grad for the given descriptions."""
    check_dtype(y.get("dtype").lower(), ("float16", "float32"), param_name="y")
    check_shape(y.get("shape"), param_name="y")
    check_shape(dy.get("shape"), param_name="dy")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    size = 1
    for dim in shape_to_list(y.get("shape")):
        size *= dim
    data_y = tvm.placeholder([size], name="data_y", dtype=y.get("dtype").lower())
    data_dy = tvm.placeholder([size], name="data_dy", dtype=dy.get("dtype").lower())
    res = sqrt_grad_compute(data_y, data_dy, z, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(
        sch, {"name": kernel_name, "tensor_list": [data_y, data_dy, res], "print_ir": False}
    )
