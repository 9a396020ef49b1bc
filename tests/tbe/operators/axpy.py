"""Alpha * x + z."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("axpy")
def axpy_compute(x, z, y, alpha=1.0, kernel_name="axpy"):
    """What axpy computes."""
    return te.lang.cce.vaxpy(x, z, alpha)


@util.check_input_type(dict, dict, dict, (int, float), str)
def axpy(x, z, y, alpha=1.0, kernel_name="axpy"):
    """Build axpy for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(x.get("dtype").lower(), ("float16", "float32"))
    shape_x = util.scalar2tensor_one(x.get("shape"))
    util.check_shape_rule(shape_x)
    util.check_tensor_shape_size(shape_x, SHAPE_SIZE_LIMIT)
    shape_z = util.scalar2tensor_one(z.get("shape"))
    util.check_shape_rule(shape_z)
    util.check_tensor_shape_size(shape_z, SHAPE_SIZE_LIMIT)
    data_x = tvm.placeholder(shape_x, name="data_x", dtype=x.get("dtype").lower())
    data_z = tvm.placeholder(shape_z, name="data_z", dtype=z.get("dtype").lower())
    res = axpy_compute(data_x, data_z, y, alpha, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_x, data_z, res]}
    te.lang.cce.cce_build_code(sch, config)
