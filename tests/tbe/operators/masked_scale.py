"""x * mask * value, with a mask of bytes beside floats."""

import te.lang.cce as tbe
from te import tvm
from te.utils import para_check


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def masked_scale(x, mask, y, value, kernel_name="masked_scale"):
    """Build masked_scale for the given descriptions."""
    data = tvm.placeholder(x.get("shape"), name="data", dtype=x.get("dtype"))
    kept = tvm.placeholder(mask.get("shape"), name="kept", dtype=mask.get("dtype"))
    res = tbe.vmuls(tbe.vmul(data, kept), value)
    with tvm.target.cce():
        sch = tbe.auto_schedule(res)
    tbe.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data, kept, res]})
