"""Values on a grid of 2**num_bits steps per channel; floor gives whole numbers that meet floats."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util


@fusion_manager.register("fake_quant")
def fake_quant_compute(x, low, high, y, quant_max, kernel_name="fake_quant"):
    """What fake_quant computes."""
    shape = te.lang.cce.util.shape_to_list(x.shape)
    narrow = te.lang.cce.util.shape_to_list(low.shape)
    top = te.lang.cce.broadcast(tvm.const(quant_max, x.dtype), narrow, x.dtype)
    scale = te.lang.cce.vdiv(te.lang.cce.vsub(high, low), top)
    zero = te.lang.cce.floor(te.lang.cce.vadds(te.lang.cce.vdiv(te.lang.cce.vmuls(low, -1.0), scale), 0.5))
    shift = te.lang.cce.broadcast(te.lang.cce.vmul(zero, scale), shape)  # int32 and float
    wide = te.lang.cce.broadcast(scale, shape)
    steps = te.lang.cce.vdiv(te.lang.cce.vadd(x, shift), wide)
    steps = te.lang.cce.floor(te.lang.cce.vadds(steps, 0.5))
    return te.lang.cce.vsub(te.lang.cce.vmul(steps, wide), shift)


@util.check_input_type(dict, dict, dict, dict, int, int, str)
def fake_quant(x, low, high, y, num_bits=8, channel_axis=1, kernel_name="fake_quant"):
    """Build fake_quant for the given descriptions."""
    shape = x.get("shape")
    util.check_kernel_name(kernel_name)
    util.check_shape_rule(shape)
    util.check_shape_rule(low.get("ori_shape"), 1, 1, shape[channel_axis])
    util.check_tensor_shape_size(shape)
    dtype = x.get("dtype").lower()
    util.check_dtype_rule(dtype, ["float32", "float16"])
    channels = [1] * len(shape)
    channels[channel_axis] = low.get("ori_shape")[0]
    data = tvm.placeholder(shape, name="x", dtype=dtype)
    low_data = tvm.placeholder(channels, name="low", dtype=dtype)
    high_data = tvm.placeholder(channels, name="high", dtype=dtype)
    res = fake_quant_compute(data, low_data, high_data, y, 2**num_bits - 1, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"print_ir": False, "name": kernel_name, "tensor_list": [data, low_data, high_data, res]}
    te.lang.cce.cce_build_code(sch, config)
