"""The root of the sum of squares."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("euclidean_norm")
def euclidean_norm_compute(x, y, axis, keep_dims=False, kernel_name="euclidean_norm"):
    """What euclidean_norm computes."""
    return te.lang.cce.vsqrt(te.lang.cce.sum(te.lang.cce.vmul(x, x), axis, keep_dims))


@util.check_input_type(dict, dict, (list, tuple), bool, str)
def euclidean_norm(x, y, axis, keep_dims=False, kernel_name="euclidean_norm"):
    """Build euclidean_norm for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(x.get("dtype").lower(), ("float32",))
    shape_x = util.scalar2tensor_one(x.get("shape"))
    util.check_shape_rule(shape_x)
    util.check_tensor_shape_size(shape_x, SHAPE_SIZE_LIMIT)
    data_x = tvm.placeholder(shape_x, name="data_x", dtype=x.get("dtype").lower())
    res = euclidean_norm_compute(data_x, y, axis, keep_dims, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_x, res]}
    te.lang.cce.cce_build_code(sch, config)
