"""x, or a part of it given by channel where it is negative."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("prelu")
def prelu_compute(x, weight, y, kernel_name="prelu"):
    """What prelu computes."""
    weight = te.lang.cce.broadcast(weight, shape_to_list(x.shape))
    return te.lang.cce.vcmpsel(x, 0.0, "gt", x, te.lang.cce.vmul(x, weight))


@check_op_params(REQUIRED_INPUT, REQUIRED_INPUT, REQUIRED_OUTPUT, KERNEL_NAME)
def prelu(x, weight, y, kernel_name="prelu"):
    """Build prelu for the given descriptions."""
    check_dtype(x.get("dtype").lower(), ("float16", "float32"), param_name="x")
    check_shape(x.get("shape"), param_name="x")
    check_shape(weight.get("shape"), param_name="weight")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    data_x = tvm.placeholder(x.get("shape"), name="data_x", dtype=x.get("dtype").lower())
    data_weight = tvm.placeholder(weight.get("shape"), name="data_weight", dtype=weight.get("dtype").lower())
    res = prelu_compute(data_x, data_weight, y, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(
        sch, {"name": kernel_name, "tensor_list": [data_x, data_weight, res], "print_ir": False}
    )
