"""a step against the gradient."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("apply_gradient_descent")
def apply_gradient_descent_compute(var, delta, var_out, alpha, kernel_name="apply_gradient_descent"):
    """What apply_gradient_descent computes."""
    return te.lang.cce.vsub(var, te.lang.cce.vmuls(delta, alpha))


@util.check_input_type(dict, dict, dict, (int, float), str)
def apply_gradient_descent(var, delta, var_out, alpha, kernel_name="apply_gradient_descent"):
    """Build apply_gradient_descent for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(var.get("dtype").lower(), ("float16", "float32"))
    shape_var = util.scalar2tensor_one(var.get("shape"))
    util.check_shape_rule(shape_var)
    util.check_tensor_shape_size(shape_var, SHAPE_SIZE_LIMIT)
    shape_delta = util.scalar2tensor_one(delta.get("shape"))
    util.check_shape_rule(shape_delta)
    util.check_tensor_shape_size(shape_delta, SHAPE_SIZE_LIMIT)
    data_var = tvm.placeholder(shape_var, name="data_var", dtype=var.get("dtype").lower())
    data_delta = tvm.placeholder(shape_delta, name="data_delta", dtype=delta.get("dtype").lower())
    res = apply_gradient_descent_compute(data_var, data_delta, var_out, alpha, kernel_name)
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_var, data_delta, res]}
    te.lang.cce.cce_build_code(sch, config)
