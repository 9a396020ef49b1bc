"""The maximum over axes."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("reduce_max")
def reduce_max_compute(x, y, axis, keep_dims=False, kernel_name="reduce_max"):
    """What reduce_max computes."""
    return te.lang.cce.reduce_max(x, axis, keep_dims)


@check_op_params(REQUIRED_INPUT, REQUIRED_OUTPUT, REQUIRED_ATTR_LIST_INT, OPTION_ATTR_BOOL, KERNEL_NAME)
def reduce_max(x, y, axis, keep_dims=False, kernel_name="reduce_max"):
    """Build reduce_max for the given descriptions."""
    check_dtype(x.get("dtype").lower(), ("float16", "float32", "int32"), param_name="x")
    check_shape(x.get("shape"), param_name="x")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    data_x = tvm.placeholder(x.get("shape"), name="data_x", dtype=x.get("dtype").lower())
    res = reduce_max_compute(data_x, y, axis, keep_dims, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data_x, res], "print_ir": False})
