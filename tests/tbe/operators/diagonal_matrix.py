"""a matrix with x on its diagonal, by index."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("diagonal_matrix")
def diagonal_matrix_compute(x, y, kernel_name="diagonal_matrix"):
    """What diagonal_matrix computes."""
    count = x.shape[0]
    zero = tvm.const(0, x.dtype)
    return tvm.compute((count, count), lambda i, j: tvm.select(i == j, x(i), zero), name="diagonal")


@check_op_params(REQUIRED_INPUT, REQUIRED_OUTPUT, KERNEL_NAME)
def diagonal_matrix(x, y, kernel_name="diagonal_matrix"):
    """Build diagonal_matrix for the given descriptions."""
    check_dtype(x.get("dtype").lower(), ("float32", "int32"), param_name="x")
    check_shape(x.get("shape"), param_name="x")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    data_x = tvm.placeholder(x.get("shape"), name="data_x", dtype=x.get("dtype").lower())
    res = diagonal_matrix_compute(data_x, y, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data_x, res], "print_ir": False})
