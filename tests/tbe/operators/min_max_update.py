"""Running minimum and maximum of a tensor, with an optional input that may be left out."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from te.utils.op_utils import *
from topi import generic


@fusion_manager.register("min_max_update")
def min_max_update_compute(x, low, high, decay):
    """What min_max_update computes."""
    axes = list(range(len(x.shape)))
    least = te.lang.cce.reduce_min(x, axes, True)
    most = te.lang.cce.reduce_max(x, axes, True)
    one = (1,)
    least, most = (te.lang.cce.reshape(t, one) for t in (least, most))
    mixed = []
    for old, new in ((low, least), (high, most)):
        mixed.append(te.lang.cce.vadd(te.lang.cce.vmuls(old, decay), te.lang.cce.vmuls(new, 1 - decay)))
    return [te.lang.cce.vmins(mixed[0], 0), te.lang.cce.vmaxs(mixed[1], 0)]


@check_op_params(
    REQUIRED_INPUT,
    REQUIRED_INPUT,
    REQUIRED_INPUT,
    REQUIRED_OUTPUT,
    REQUIRED_OUTPUT,
    OPTION_ATTR_FLOAT,
    KERNEL_NAME,
)
def min_max_update(x, low, high, new_low, new_high, decay=0.5, kernel_name="min_max_update"):
    """Build min_max_update for the given descriptions."""
    data = tvm.placeholder(x.get("shape"), name="data", dtype=x.get("dtype"))
    old = [tvm.placeholder((1,), name=n, dtype=x.get("dtype")) for n in ("low", "high")]
    res = min_max_update_compute(data, *old, decay)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data, *old, *res]})
