"""x * scale + bias by channel."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("scale")
def scale_compute(x, factor, bias, y, kernel_name="scale"):
    """What scale computes."""
    shape = util.shape_to_list(x.shape)
    return te.lang.cce.vadd(
        te.lang.cce.vmul(x, te.lang.cce.broadcast(factor, shape)), te.lang.cce.broadcast(bias, shape)
    )


@util.check_input_type(dict, dict, dict, dict, str)
def scale(x, factor, bias, y, kernel_name="scale"):
    """Build scale for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(x.get("dtype").lower(), ("float16", "float32"))
    shape_x = util.scalar2tensor_one(x.get("shape"))
    util.check_shape_rule(shape_x)
    util.check_tensor_shape_size(shape_x, SHAPE_SIZE_LIMIT)
    shape_factor = util.scalar2tensor_one(factor.get("shape"))
    util.check_shape_rule(shape_factor)
    util.check_tensor_shape_size(shape_factor, SHAPE_SIZE_LIMIT)
    shape_bias = util.scalar2tensor_one(bias.get("shape"))
    util.check_shape_rule(shape_bias)
    util.check_tensor_shape_size(shape_bias, SHAPE_SIZE_LIMIT)
    data_x = tvm.placeholder(shape_x, name="data_x", dtype=x.get("dtype").lower())
    data_factor = tvm.placeholder(shape_factor, name="data_factor", dtype=factor.get("dtype").lower())
    data_bias = tvm.placeholder(shape_bias, name="data_bias", dtype=bias.get("dtype").lower())
    res = scale_compute(data_x, data_factor, data_bias, y, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_x, data_factor, data_bias, res]}
    te.lang.cce.cce_build_code(sch, config)
