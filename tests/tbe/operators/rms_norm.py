"""Rows over the root of their mean square."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("rms_norm", op_mode="static")
def rms_norm_compute(x, gamma, y, epsilon=1e-06, kernel_name="rms_norm"):
    """What rms_norm computes."""
    shape = shape_util.shape_to_list(x.shape)
    wide = dsl.cast_to(x, "float32")
    square = dsl.vmuls(dsl.reduce_sum(dsl.vmul(wide, wide), axis=-1, keepdims=True), 1.0 / shape[-1])
    normal = dsl.vmul(wide, dsl.broadcast(dsl.vrsqrt(dsl.vadds(square, epsilon)), shape))
    scaled = dsl.vmul(normal, dsl.broadcast(dsl.cast_to(gamma, "float32"), shape))
    return dsl.cast_to(scaled, x.dtype)


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def rms_norm(x, gamma, y, epsilon=1e-06, kernel_name="rms_norm"):
    """Build rms_norm for the given descriptions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32", "bfloat16"), param_name="x")
    para_check.check_shape(x.get("shape"), param_name="x")
    para_check.check_shape(gamma.get("shape"), param_name="gamma")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    data_gamma = tvm.placeholder(
        shape_util.shape_to_list(gamma.get("shape")), name="data_gamma", dtype=gamma.get("dtype").lower()
    )
    res = rms_norm_compute(data_x, data_gamma, y, epsilon, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, data_gamma, res]})
