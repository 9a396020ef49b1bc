"""x + value * a * b."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("addcmul")
def addcmul_compute(x, a, b, y, value=1.0, kernel_name="addcmul"):
    """What addcmul computes."""
    return te.lang.cce.vadd(x, te.lang.cce.vmuls(te.lang.cce.vmul(a, b), value))


@check_op_params(
    REQUIRED_INPUT, REQUIRED_INPUT, REQUIRED_INPUT, REQUIRED_OUTPUT, OPTION_ATTR_FLOAT, KERNEL_NAME
)
def addcmul(x, a, b, y, value=1.0, kernel_name="addcmul"):
    """Build addcmul for the given descriptions."""
    check_dtype(x.get("dtype").lower(), ("float16", "float32"), param_name="x")
    check_shape(x.get("shape"), param_name="x")
    check_shape(a.get("shape"), param_name="a")
    check_shape(b.get("shape"), param_name="b")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    size = 1
    for dim in shape_to_list(x.get("shape")):
        size *= dim
    data_x = tvm.placeholder([size], name="data_x", dtype=x.get("dtype").lower())
    data_a = tvm.placeholder([size], name="data_a", dtype=a.get("dtype").lower())
    data_b = tvm.placeholder([size], name="data_b", dtype=b.get("dtype").lower())
    res = addcmul_compute(data_x, data_a, data_b, y, value, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(
        sch, {"name": kernel_name, "tensor_list": [data_x, data_a, data_b, res], "print_ir": False}
    )
