"""x over its length."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("l2_normalize")
def l2_normalize_compute(x, y, axis, epsilon=1e-12, kernel_name="l2_normalize"):
    """What l2_normalize computes."""
    shape = shape_to_list(x.shape)
    length = te.lang.cce.vsqrt(
        te.lang.cce.vmaxs(te.lang.cce.sum(te.lang.cce.vmul(x, x), axis, keepdims=True), epsilon)
    )
    return te.lang.cce.vdiv(x, te.lang.cce.broadcast(length, shape))


@check_op_params(REQUIRED_INPUT, REQUIRED_OUTPUT, REQUIRED_ATTR_LIST_INT, OPTION_ATTR_FLOAT, KERNEL_NAME)
def l2_normalize(x, y, axis, epsilon=1e-12, kernel_name="l2_normalize"):
    """Build l2_normalize for the given descriptions."""
    check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    check_shape(x.get("shape"), param_name="x")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    data_x = tvm.placeholder(x.get("shape"), name="data_x", dtype=x.get("dtype").lower())
    res = l2_normalize_compute(data_x, y, axis, epsilon, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data_x, res], "print_ir": False})
