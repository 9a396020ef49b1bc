"""The cross entropy of logits, computed so that it does not overflow."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("sigmoid_cross_entropy", op_mode="static")
def sigmoid_cross_entropy_compute(predict, target, y, kernel_name="sigmoid_cross_entropy"):
    """What sigmoid_cross_entropy computes."""
    tail = dsl.vlog(dsl.vadds(dsl.vexp(dsl.vmuls(dsl.vabs(predict), -1.0)), 1.0))
    return dsl.vadd(dsl.vsub(dsl.vmaxs(predict, 0.0), dsl.vmul(predict, target)), tail)


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.KERNEL_NAME,
)
def sigmoid_cross_entropy(predict, target, y, kernel_name="sigmoid_cross_entropy"):
    """Build sigmoid_cross_entropy for the given descriptions."""
    para_check.check_dtype(predict.get("dtype").lower(), ("float32",), param_name="predict")
    para_check.check_shape(predict.get("shape"), param_name="predict")
    para_check.check_shape(target.get("shape"), param_name="target")
    data_predict = tvm.placeholder(
        shape_util.shape_to_list(predict.get("shape")),
        name="data_predict",
        dtype=predict.get("dtype").lower(),
    )
    data_target = tvm.placeholder(
        shape_util.shape_to_list(target.get("shape")), name="data_target", dtype=target.get("dtype").lower()
    )
    res = sigmoid_cross_entropy_compute(data_predict, data_target, y, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_predict, data_target, res]})
