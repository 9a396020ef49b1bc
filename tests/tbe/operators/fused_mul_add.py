"""x * a + b."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("fused_mul_add")
def fused_mul_add_compute(x, a, b, y, kernel_name="fused_mul_add"):
    """What fused_mul_add computes."""
    return te.lang.cce.vmla(x, a, b)


@util.check_input_type(dict, dict, dict, dict, str)
def fused_mul_add(x, a, b, y, kernel_name="fused_mul_add"):
    """Build fused_mul_add for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(x.get("dtype").lower(), ("float16", "float32", "int32"))
    shape_x = util.scalar2tensor_one(x.get("shape"))
    util.check_shape_rule(shape_x)
    util.check_tensor_shape_size(shape_x, SHAPE_SIZE_LIMIT)
    shape_a = util.scalar2tensor_one(a.get("shape"))
    util.check_shape_rule(shape_a)
    util.check_tensor_shape_size(shape_a, SHAPE_SIZE_LIMIT)
    shape_b = util.scalar2tensor_one(b.get("shape"))
    util.check_shape_rule(shape_b)
    util.check_tensor_shape_size(shape_b, SHAPE_SIZE_LIMIT)
    data_x = tvm.placeholder(shape_x, name="data_x", dtype=x.get("dtype").lower())
    data_a = tvm.placeholder(shape_a, name="data_a", dtype=a.get("dtype").lower())
    data_b = tvm.placeholder(shape_b, name="data_b", dtype=b.get("dtype").lower())
    res = fused_mul_add_compute(data_x, data_a, data_b, y, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_x, data_a, data_b, res]}
    te.lang.cce.cce_build_code(sch, config)
