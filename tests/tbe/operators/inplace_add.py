"""Rows added to some of the rows of x."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("inplace_add")
def inplace_add_compute(x, v, y, indices, kernel_name="inplace_add"):
    """What inplace_add computes."""
    return te.lang.cce.inplace_add(x, indices, v)


@check_op_params(REQUIRED_INPUT, REQUIRED_INPUT, REQUIRED_OUTPUT, REQUIRED_ATTR_LIST_INT, KERNEL_NAME)
def inplace_add(x, v, y, indices, kernel_name="inplace_add"):
    """Build inplace_add for the given descriptions."""
    check_dtype(x.get("dtype").lower(), ("float32", "int32"), param_name="x")
    check_shape(x.get("shape"), param_name="x")
    check_shape(v.get("shape"), param_name="v")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    data_x = tvm.placeholder(x.get("shape"), name="data_x", dtype=x.get("dtype").lower())
    data_v = tvm.placeholder(v.get("shape"), name="data_v", dtype=v.get("dtype").lower())
    res = inplace_add_compute(data_x, data_v, y, indices, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(
        sch, {"name": kernel_name, "tensor_list": [data_x, data_v, res], "print_ir": False}
    )
