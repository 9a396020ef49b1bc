"""Alpha * x + beta limited to 0 .. 1."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("hard_sigmoid")
def hard_sigmoid_compute(x, y, alpha=0.25, beta=0.5, kernel_name="hard_sigmoid"):
    """What hard_sigmoid computes."""
    return te.lang.cce.vmins(
        te.lang.cce.vmaxs(te.lang.cce.vadds(te.lang.cce.vmuls(x, alpha), beta), 0.0), 1.0
    )


@util.check_input_type(dict, dict, (int, float), (int, float), str)
def hard_sigmoid(x, y, alpha=0.25, beta=0.5, kernel_name="hard_sigmoid"):
    """Build hard_sigmoid for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(x.get("dtype").lower(), ("float16", "float32"))
    shape_x = util.scalar2tensor_one(x.get("shape"))
    util.check_shape_rule(shape_x)
    util.check_tensor_shape_size(shape_x, SHAPE_SIZE_LIMIT)
    data_x = tvm.placeholder(shape_x, name="data_x", dtype=x.get("dtype").lower())
    res = hard_sigmoid_compute(data_x, y, alpha, beta, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_x, res]}
    te.lang.cce.cce_build_code(sch, config)
