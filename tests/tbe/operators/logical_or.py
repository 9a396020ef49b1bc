"""Either."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("logical_or")
def logical_or_compute(x1, x2, y, kernel_name="logical_or"):
    """What logical_or computes."""
    shape_x, shape_y, shape_max = broadcast_shapes(shape_to_list(x1.shape), shape_to_list(x2.shape))
    x1 = te.lang.cce.broadcast(te.lang.cce.reshape(x1, shape_x), shape_max)
    x2 = te.lang.cce.broadcast(te.lang.cce.reshape(x2, shape_y), shape_max)
    return te.lang.cce.vlogic(x1, x2, "logic_or")


@check_op_params(REQUIRED_INPUT, REQUIRED_INPUT, REQUIRED_OUTPUT, KERNEL_NAME)
def logical_or(x1, x2, y, kernel_name="logical_or"):
    """Build logical_or for the given descriptions."""
    check_dtype(x1.get("dtype").lower(), ("bool",), param_name="x1")
    check_shape(x1.get("shape"), param_name="x1")
    check_shape(x2.get("shape"), param_name="x2")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    data_x1 = tvm.placeholder(x1.get("shape"), name="data_x1", dtype=x1.get("dtype").lower())
    data_x2 = tvm.placeholder(x2.get("shape"), name="data_x2", dtype=x2.get("dtype").lower())
    res = logical_or_compute(data_x1, data_x2, y, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(
        sch, {"name": kernel_name, "tensor_list": [data_x1, data_x2, res], "print_ir": False}
    )
