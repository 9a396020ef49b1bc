"""Rows with mean 0 and variance 1, scaled and shifted; also the means and variances."""

from impl.util.platform_adapter import (
    OpPatternMode,
    classify,
    para_check,
    register_operator,
    register_operator_compute,
    shape_util,
    tbe,
    tvm,
)


@register_operator_compute("LayerNorm", op_mode="dynamic", support_fusion=True)
def layer_norm_compute(x, gamma, beta, y, mean, variance, epsilon=1e-05, kernel_name="layer_norm"):
    """What layer_norm computes."""
    shape = shape_util.shape_to_list(x.shape)
    count = 1.0 / shape[-1]
    mean = tbe.vmuls(tbe.reduce_sum(x, axis=-1, keepdims=True), count)
    less = tbe.vsub(x, tbe.broadcast(mean, shape))
    variance = tbe.vmuls(tbe.reduce_sum(tbe.vmul(less, less), axis=-1, keepdims=True), count)
    normal = tbe.vmul(less, tbe.broadcast(tbe.vrsqrt(tbe.vadds(variance, epsilon)), shape))
    y = tbe.vadd(tbe.vmul(normal, tbe.broadcast(gamma, shape)), tbe.broadcast(beta, shape))
    return [y, mean, variance]


@register_operator("LayerNorm")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def layer_norm(x, gamma, beta, y, mean, variance, epsilon=1e-05, kernel_name="layer_norm"):
    """Build layer_norm for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    cases = classify([x, gamma, beta], OpPatternMode.NORM)
    schedules, tensors = [], []
    for case_x, case_gamma, case_beta in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x, case_gamma, case_beta])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            data_gamma = tvm.placeholder(shapes[1], name="data_gamma", dtype=gamma.get("dtype").lower())
            data_beta = tvm.placeholder(shapes[2], name="data_beta", dtype=beta.get("dtype").lower())
            res = layer_norm_compute(data_x, data_gamma, data_beta, y, mean, variance, epsilon, kernel_name)
            tensors.append([data_x, data_gamma, data_beta, *res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
