"""Values at the nearest multiple of a step for each channel; floor gives whole numbers, which meet floats."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util


@fusion_manager.register("round_to_steps")
def round_to_steps_compute(x, step, y, kernel_name="round_to_steps"):
    """What round_to_steps computes."""
    wide = te.lang.cce.broadcast(step, te.lang.cce.util.shape_to_list(x.shape))
    count = te.lang.cce.floor(te.lang.cce.vadds(te.lang.cce.vdiv(x, wide), 0.5))  # int32
    return te.lang.cce.vmul(count, wide)


@util.check_input_type(dict, dict, dict, int, str)
def round_to_steps(x, step, y, channel_axis=1, kernel_name="round_to_steps"):
    """Build round_to_steps for the given descriptions."""
    shape, dtype = x.get("shape"), x.get("dtype").lower()
    util.check_kernel_name(kernel_name)
    util.check_shape_rule(shape)
    util.check_dtype_rule(dtype, ["float32", "float16"])
    channels = [n if axis == channel_axis else 1 for axis, n in enumerate(shape)]
    util.check_shape_rule(step.get("ori_shape"), 1, 1, shape[channel_axis])
    data = tvm.placeholder(shape, name="x", dtype=dtype)
    steps = tvm.placeholder(channels, name="step", dtype=dtype)
    res = round_to_steps_compute(data, steps, y, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    te.lang.cce.cce_build_code(sch, {"name": kernel_name, "tensor_list": [data, steps, res]})
