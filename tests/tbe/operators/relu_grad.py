"""The gradient where the features are positive."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("relu_grad")
def relu_grad_compute(gradients, features, y, kernel_name="relu_grad"):
    """What relu_grad computes."""
    return te.lang.cce.vcmpsel(
        features, tvm.const(0, features.dtype), "gt", gradients, tvm.const(0, gradients.dtype)
    )


@util.check_input_type(dict, dict, dict, str)
def relu_grad(gradients, features, y, kernel_name="relu_grad"):
    """Build relu_grad for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(gradients.get("dtype").lower(), ("float16", "float32", "int32"))
    shape_gradients = util.scalar2tensor_one(gradients.get("shape"))
    util.check_shape_rule(shape_gradients)
    util.check_tensor_shape_size(shape_gradients, SHAPE_SIZE_LIMIT)
    shape_features = util.scalar2tensor_one(features.get("shape"))
    util.check_shape_rule(shape_features)
    util.check_tensor_shape_size(shape_features, SHAPE_SIZE_LIMIT)
    data_gradients = tvm.placeholder(
        shape_gradients, name="data_gradients", dtype=gradients.get("dtype").lower()
    )
    data_features = tvm.placeholder(shape_features, name="data_features", dtype=features.get("dtype").lower())
    res = relu_grad_compute(data_gradients, data_features, y, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_gradients, data_features, res]}
    te.lang.cce.cce_build_code(sch, config)
