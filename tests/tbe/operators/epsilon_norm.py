"""x / sqrt(mean of squares + epsilon); the attribute is described as a class."""

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
from impl.util.util_attr_common import OpAttr, get_attr_by_cls
from impl.util.util_compute import only_static_support

EPSILON = OpAttr(0, "epsilon", "Float", 0.001)


@register_operator_compute("EpsilonNorm", op_mode="dynamic", support_fusion=only_static_support)
def epsilon_norm_compute(x, y, epsilon, kernel_name="epsilon_norm"):
    """What epsilon_norm computes."""
    shape = shape_util.shape_to_list(x.shape)
    epsilon = get_attr_by_cls(epsilon, EPSILON, x.dtype)
    squares = tbe.reduce_sum(tbe.vmul(x, x), axis=-1, keepdims=True)
    below = tbe.vsqrt(tbe.vadds(tbe.vmuls(squares, 1.0 / shape[-1]), epsilon))
    return tbe.vdiv(x, tbe.broadcast(below, shape))


@register_operator("EpsilonNorm")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def epsilon_norm(x, y, epsilon=None, kernel_name="epsilon_norm"):
    """Build epsilon_norm for the given descriptions, which may have unknown dimensions."""
    schedules, tensors = [], []
    for (case_x,) in classify([x], OpPatternMode.NORM):
        with tbe.compute():
            (shape,) = shape_util.variable_shape([case_x])
            data = tvm.placeholder(shape, name="data", dtype=x["dtype"].lower())
            res = epsilon_norm_compute(data, y, epsilon, kernel_name)
            tensors.append([data, res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
