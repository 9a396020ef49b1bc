"""x times a tensor of one element, which vmuls takes as its scalar."""

import te.lang.cce as tbe
from te import tvm
from te.utils import para_check


def scale_by_tensor(x, factor, y, kernel_name="scale_by_tensor"):
    """Build scale_by_tensor for the given descriptions."""
    para_check.check_shape(factor.get("shape"), max_size=1, param_name="factor")
    data = tvm.placeholder(x.get("shape"), name="data", dtype=x.get("dtype"))
    number = tvm.placeholder(factor.get("shape"), name="number", dtype=factor.get("dtype"))
    res = tbe.vmuls(data, number)
    with tvm.target.cce():
        sch = tbe.auto_schedule(res)
    tbe.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data, number, res]})
