"""Sums and sums of squares by channel (the last axis)."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("bn_training_reduce")
def bn_training_reduce_compute(x, total, square_total, kernel_name="bn_training_reduce"):
    """What bn_training_reduce computes."""
    axes = list(range(len(x.shape) - 1))
    return list(te.lang.cce.tuple_sum([x, te.lang.cce.vmul(x, x)], axes, keepdims=False))


@check_op_params(REQUIRED_INPUT, REQUIRED_OUTPUT, REQUIRED_OUTPUT, KERNEL_NAME)
def bn_training_reduce(x, total, square_total, kernel_name="bn_training_reduce"):
    """Build bn_training_reduce for the given descriptions."""
    check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    check_shape(x.get("shape"), param_name="x")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    data_x = tvm.placeholder(x.get("shape"), name="data_x", dtype=x.get("dtype").lower())
    res = bn_training_reduce_compute(data_x, total, square_total, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data_x, *res], "print_ir": False})
