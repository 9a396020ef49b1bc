"""The mean of squared differences."""

import functools

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("mse_loss")
def mse_loss_compute(predict, label, y, kernel_name="mse_loss"):
    """What mse_loss computes."""
    difference = te.lang.cce.vsub(predict, label)
    shape = util.shape_to_list(predict.shape)
    total = te.lang.cce.sum(te.lang.cce.vmul(difference, difference), axis=list(range(len(shape))))
    return te.lang.cce.vmuls(total, 1.0 / functools.reduce(lambda a, b: a * b, shape))


@util.check_input_type(dict, dict, dict, str)
def mse_loss(predict, label, y, kernel_name="mse_loss"):
    """Build mse_loss for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(predict.get("dtype").lower(), ("float32",))
    shape_predict = util.scalar2tensor_one(predict.get("shape"))
    util.check_shape_rule(shape_predict)
    util.check_tensor_shape_size(shape_predict, SHAPE_SIZE_LIMIT)
    shape_label = util.scalar2tensor_one(label.get("shape"))
    util.check_shape_rule(shape_label)
    util.check_tensor_shape_size(shape_label, SHAPE_SIZE_LIMIT)
    data_predict = tvm.placeholder(shape_predict, name="data_predict", dtype=predict.get("dtype").lower())
    data_label = tvm.placeholder(shape_label, name="data_label", dtype=label.get("dtype").lower())
    res = mse_loss_compute(data_predict, data_label, y, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_predict, data_label, res]}
    te.lang.cce.cce_build_code(sch, config)
