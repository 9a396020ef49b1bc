"""x1 + x2 with broadcasting."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("add")
def add_compute(x1, x2, y, kernel_name="add"):
    """What add computes."""
    shape_x, shape_y, shape_max = util.broadcast_shapes(
        util.shape_to_list(x1.shape), util.shape_to_list(x2.shape)
    )
    x1 = te.lang.cce.broadcast(te.lang.cce.reshape(x1, shape_x), shape_max)
    x2 = te.lang.cce.broadcast(te.lang.cce.reshape(x2, shape_y), shape_max)
    return te.lang.cce.vadd(x1, x2)


@util.check_input_type(dict, dict, dict, str)
def add(x1, x2, y, kernel_name="add"):
    """Build add for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(x1.get("dtype").lower(), ("float16", "float32", "int32"))
    shape_x1 = util.scalar2tensor_one(x1.get("shape"))
    util.check_shape_rule(shape_x1)
    util.check_tensor_shape_size(shape_x1, SHAPE_SIZE_LIMIT)
    shape_x2 = util.scalar2tensor_one(x2.get("shape"))
    util.check_shape_rule(shape_x2)
    util.check_tensor_shape_size(shape_x2, SHAPE_SIZE_LIMIT)
    data_x1 = tvm.placeholder(shape_x1, name="data_x1", dtype=x1.get("dtype").lower())
    data_x2 = tvm.placeholder(shape_x2, name="data_x2", dtype=x2.get("dtype").lower())
    res = add_compute(data_x1, data_x2, y, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_x1, data_x2, res]}
    te.lang.cce.cce_build_code(sch, config)
