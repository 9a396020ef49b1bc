"""exponentials that add up to 1."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("softmax")
def softmax_compute(x, y, axis, kernel_name="softmax"):
    """What softmax computes."""
    shape = util.shape_to_list(x.shape)
    dtype = x.dtype
    top = te.lang.cce.broadcast(te.lang.cce.reduce_max(x, axis, keepdims=True), shape)
    less = te.lang.cce.cast_to(te.lang.cce.vsub(x, top), "float32")
    grown = te.lang.cce.vexp(less)
    total = te.lang.cce.broadcast(te.lang.cce.sum(grown, axis, keepdims=True), shape)
    return te.lang.cce.cast_to(te.lang.cce.vdiv(grown, total), dtype)


@util.check_input_type(dict, dict, (list, tuple), str)
def softmax(x, y, axis, kernel_name="softmax"):
    """Build softmax for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(x.get("dtype").lower(), ("float16", "float32"))
    shape_x = util.scalar2tensor_one(x.get("shape"))
    util.check_shape_rule(shape_x)
    util.check_tensor_shape_size(shape_x, SHAPE_SIZE_LIMIT)
    data_x = tvm.placeholder(shape_x, name="data_x", dtype=x.get("dtype").lower())
    res = softmax_compute(data_x, y, axis, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_x, res]}
    te.lang.cce.cce_build_code(sch, config)
