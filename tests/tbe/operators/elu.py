"""x, or alpha * (exp(x) - 1) where it is negative."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("elu")
def elu_compute(x, y, alpha=1.0, kernel_name="elu"):
    """What elu computes."""
    dtype = x.dtype
    negative = te.lang.cce.vmins(x, tvm.const(0, dtype))
    positive = te.lang.cce.vmaxs(x, tvm.const(0, dtype))
    below = te.lang.cce.vmuls(
        te.lang.cce.vadds(te.lang.cce.vexp(negative), tvm.const(-1, dtype)), tvm.const(alpha, dtype)
    )
    return te.lang.cce.vadd(below, positive)


@util.check_input_type(dict, dict, (int, float), str)
def elu(x, y, alpha=1.0, kernel_name="elu"):
    """Build elu for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(x.get("dtype").lower(), ("float32",))
    shape_x = util.scalar2tensor_one(x.get("shape"))
    util.check_shape_rule(shape_x)
    util.check_tensor_shape_size(shape_x, SHAPE_SIZE_LIMIT)
    data_x = tvm.placeholder(shape_x, name="data_x", dtype=x.get("dtype").lower())
    res = elu_compute(data_x, y, alpha, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_x, res]}
    te.lang.cce.cce_build_code(sch, config)
