"""Channels normalised by given means and variances."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("batch_norm_infer")
def batch_norm_infer_compute(
    x, scale, bias, mean, variance, y, epsilon=0.0001, kernel_name="batch_norm_infer"
):
    """What batch_norm_infer computes."""
    shape = util.shape_to_list(x.shape)
    inverse = te.lang.cce.vrsqrt(te.lang.cce.vadds(variance, epsilon))
    less = te.lang.cce.vsub(x, te.lang.cce.broadcast(mean, shape))
    normal = te.lang.cce.vmul(less, te.lang.cce.broadcast(te.lang.cce.vmul(inverse, scale), shape))
    return te.lang.cce.vadd(normal, te.lang.cce.broadcast(bias, shape))


@util.check_input_type(dict, dict, dict, dict, dict, dict, (int, float), str)
def batch_norm_infer(x, scale, bias, mean, variance, y, epsilon=0.0001, kernel_name="batch_norm_infer"):
    """Build batch_norm_infer for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(x.get("dtype").lower(), ("float32",))
    shape_x = util.scalar2tensor_one(x.get("shape"))
    util.check_shape_rule(shape_x)
    util.check_tensor_shape_size(shape_x, SHAPE_SIZE_LIMIT)
    shape_scale = util.scalar2tensor_one(scale.get("shape"))
    util.check_shape_rule(shape_scale)
    util.check_tensor_shape_size(shape_scale, SHAPE_SIZE_LIMIT)
    shape_bias = util.scalar2tensor_one(bias.get("shape"))
    util.check_shape_rule(shape_bias)
    util.check_tensor_shape_size(shape_bias, SHAPE_SIZE_LIMIT)
    shape_mean = util.scalar2tensor_one(mean.get("shape"))
    util.check_shape_rule(shape_mean)
    util.check_tensor_shape_size(shape_mean, SHAPE_SIZE_LIMIT)
    shape_variance = util.scalar2tensor_one(variance.get("shape"))
    util.check_shape_rule(shape_variance)
    util.check_tensor_shape_size(shape_variance, SHAPE_SIZE_LIMIT)
    data_x = tvm.placeholder(shape_x, name="data_x", dtype=x.get("dtype").lower())
    data_scale = tvm.placeholder(shape_scale, name="data_scale", dtype=scale.get("dtype").lower())
    data_bias = tvm.placeholder(shape_bias, name="data_bias", dtype=bias.get("dtype").lower())
    data_mean = tvm.placeholder(shape_mean, name="data_mean", dtype=mean.get("dtype").lower())
    data_variance = tvm.placeholder(shape_variance, name="data_variance", dtype=variance.get("dtype").lower())
    res = batch_norm_infer_compute(
        data_x, data_scale, data_bias, data_mean, data_variance, y, epsilon, kernel_name
    )
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {
        "name": kernel_name,
        "tensor_list": [data_x, data_scale, data_bias, data_mean, data_variance, res],
    }
    te.lang.cce.cce_build_code(sch, config)
