"""x * x * x in the older spelling."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic


@fusion_manager.register("cube")
def cube_compute(x, y, kernel_name="cube"):
    return te.lang.cce.vmul(te.lang.cce.vmul(x, x), x)


def cube(x, y, kernel_name="cube"):
    data = tvm.placeholder(x.get("shape"), name="data", dtype=x.get("dtype"))
    with tvm.target.cce():
        result = cube_compute(data, y, kernel_name)
        schedule = generic.auto_schedule(result)
    te.lang.cce.cce_build_code(schedule, {"name": kernel_name, "tensor_list": [data, result]})
