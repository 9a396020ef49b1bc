"""x scaled as dropout does at training time."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("dropout_scale")
def dropout_scale_compute(x, y, rate, kernel_name="dropout_scale"):
    """What dropout_scale computes."""
    return te.lang.cce.vmuls(x, tvm.const(1 / (1 - rate), x.dtype))


@util.check_input_type(dict, dict, (int, float), str)
def dropout_scale(x, y, rate, kernel_name="dropout_scale"):
    """Build dropout_scale for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(x.get("dtype").lower(), ("float16", "float32"))
    shape_x = util.scalar2tensor_one(x.get("shape"))
    util.check_shape_rule(shape_x)
    util.check_tensor_shape_size(shape_x, SHAPE_SIZE_LIMIT)
    data_x = tvm.placeholder(shape_x, name="data_x", dtype=x.get("dtype").lower())
    res = dropout_scale_compute(data_x, y, rate, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_x, res]}
    te.lang.cce.cce_build_code(sch, config)
