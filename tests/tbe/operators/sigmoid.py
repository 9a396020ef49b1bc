"""1 / (1 + exp(-x)), in float32."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("sigmoid")
def sigmoid_compute(x, y, kernel_name="sigmoid"):
    """What sigmoid computes."""
    dtype = x.dtype
    wide = te.lang.cce.cast_to(x, "float32") if dtype == "float16" else x
    res = te.lang.cce.vrec(te.lang.cce.vadds(te.lang.cce.vexp(te.lang.cce.vmuls(wide, -1.0)), 1.0))
    return te.lang.cce.cast_to(res, "float16") if dtype == "float16" else res


@util.check_input_type(dict, dict, str)
def sigmoid(x, y, kernel_name="sigmoid"):
    """Build sigmoid for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(x.get("dtype").lower(), ("float16", "float32"))
    shape_x = util.scalar2tensor_one(x.get("shape"))
    util.check_shape_rule(shape_x)
    util.check_tensor_shape_size(shape_x, SHAPE_SIZE_LIMIT)
    data_x = tvm.placeholder(shape_x, name="data_x", dtype=x.get("dtype").lower())
    res = sigmoid_compute(data_x, y, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_x, res]}
    te.lang.cce.cce_build_code(sch, config)
