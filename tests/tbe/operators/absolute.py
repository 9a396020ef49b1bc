"""|x|."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("absolute")
def absolute_compute(x, y, kernel_name="absolute"):
    """What absolute computes."""
    return te.lang.cce.vabs(x)


@check_op_params(REQUIRED_INPUT, REQUIRED_OUTPUT, KERNEL_NAME)
def absolute(x, y, kernel_name="absolute"):
    """Build absolute for the given descriptions."""
    check_dtype(x.get("dtype").lower(), ("float16", "float32", "int32"), param_name="x")
    check_shape(x.get("shape"), param_name="x")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    size = 1
    for dim in shape_to_list(x.get("shape")):
        size *= dim
    data_x = tvm.placeholder([size], name="data_x", dtype=x.get("dtype").lower())
    res = absolute_compute(data_x, y, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data_x, res], "print_ir": False})
