"""Every image and channel with mean 0 and variance 1."""

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


@register_operator_compute("InstanceNorm", op_mode="dynamic", support_fusion=True)
def instance_norm_compute(x, y, epsilon=1e-05, kernel_name="instance_norm"):
    """What instance_norm computes."""
    shape = shape_util.shape_to_list(x.shape)
    axes = [2, 3]
    count = 1.0 / (shape[2] * shape[3])
    mean = tbe.vmuls(tbe.reduce_sum(x, axes, True), count)
    less = tbe.vsub(x, tbe.broadcast(mean, shape))
    variance = tbe.vmuls(tbe.reduce_sum(tbe.vmul(less, less), axes, True), count)
    return tbe.vdiv(less, tbe.broadcast(tbe.vsqrt(tbe.vadds(variance, epsilon)), shape))


@register_operator("InstanceNorm")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def instance_norm(x, y, epsilon=1e-05, kernel_name="instance_norm"):
    """Build instance_norm for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32",), param_name="x")
    cases = classify([x], OpPatternMode.NORM)
    schedules, tensors = [], []
    for (case_x,) in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_x])
            data_x = tvm.placeholder(shapes[0], name="data_x", dtype=x.get("dtype").lower())
            res = instance_norm_compute(data_x, y, epsilon, kernel_name)
            tensors.append([data_x, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
