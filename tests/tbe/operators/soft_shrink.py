"""x moved towards 0 by lambd."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("soft_shrink")
def soft_shrink_compute(x, y, lambd=0.5, kernel_name="soft_shrink"):
    """What soft_shrink computes."""
    above = te.lang.cce.vmaxs(te.lang.cce.vadds(x, -lambd), 0.0)
    below = te.lang.cce.vmins(te.lang.cce.vadds(x, lambd), 0.0)
    return te.lang.cce.vadd(above, below)


@check_op_params(REQUIRED_INPUT, REQUIRED_OUTPUT, OPTION_ATTR_FLOAT, KERNEL_NAME)
def soft_shrink(x, y, lambd=0.5, kernel_name="soft_shrink"):
    """Build soft_shrink for the given descriptions."""
    check_dtype(x.get("dtype").lower(), ("float16", "float32"), param_name="x")
    check_shape(x.get("shape"), param_name="x")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    size = 1
    for dim in shape_to_list(x.get("shape")):
        size *= dim
    data_x = tvm.placeholder([size], name="data_x", dtype=x.get("dtype").lower())
    res = soft_shrink_compute(data_x, y, lambd, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data_x, res], "print_ir": False})
