"""x / scale + offset rounded half up into bytes."""

import te.lang.cce
from te import tvm
from te.platform.cce_conf import api_check_support
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("quantize")
def quantize_compute(x, y, scale, offset=0.0, kernel_name="quantize"):
    """What quantize computes."""
    moved = te.lang.cce.vadds(te.lang.cce.vmuls(x, 1 / scale), offset)
    return te.lang.cce.cast_to(
        te.lang.cce.vmins(te.lang.cce.vmaxs(te.lang.cce.round_half_up(moved), -128), 127), "int8"
    )


@check_op_params(REQUIRED_INPUT, REQUIRED_OUTPUT, REQUIRED_ATTR_FLOAT, OPTION_ATTR_FLOAT, KERNEL_NAME)
def quantize(x, y, scale, offset=0.0, kernel_name="quantize"):
    """Build quantize for the given descriptions."""
    check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    check_shape(x.get("shape"), param_name="x")
    if not api_check_support("te.lang.cce.vadd", "float32"):
        raise RuntimeError("this operator computes in float32")
    size = 1
    for dim in shape_to_list(x.get("shape")):
        size *= dim
    data_x = tvm.placeholder([size], name="data_x", dtype=x.get("dtype").lower())
    res = quantize_compute(data_x, y, scale, offset, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data_x, res], "print_ir": False})
