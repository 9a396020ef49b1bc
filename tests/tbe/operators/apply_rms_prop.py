"""a step of RMSProp; also the new moments."""

import te.lang.cce
from te import tvm
from te.platform.fusion_manager import fusion_manager
from topi import generic
from topi.cce import util

SHAPE_SIZE_LIMIT = 2147483648


@fusion_manager.register("apply_rms_prop")
def apply_rms_prop_compute(
    var,
    ms,
    mom,
    grad,
    var_out,
    ms_out,
    mom_out,
    lr,
    rho=0.9,
    momentum=0.0,
    epsilon=1e-07,
    kernel_name="apply_rms_prop",
):
    """What apply_rms_prop computes."""
    ms = te.lang.cce.vadd(ms, te.lang.cce.vmuls(te.lang.cce.vsub(te.lang.cce.vmul(grad, grad), ms), 1 - rho))
    mom = te.lang.cce.vadd(
        te.lang.cce.vmuls(mom, momentum),
        te.lang.cce.vdiv(te.lang.cce.vmuls(grad, lr), te.lang.cce.vsqrt(te.lang.cce.vadds(ms, epsilon))),
    )
    return [te.lang.cce.vsub(var, mom), ms, mom]


@util.check_input_type(
    dict, dict, dict, dict, dict, dict, dict, (int, float), (int, float), (int, float), (int, float), str
)
def apply_rms_prop(
    var,
    ms,
    mom,
    grad,
    var_out,
    ms_out,
    mom_out,
    lr,
    rho=0.9,
    momentum=0.0,
    epsilon=1e-07,
    kernel_name="apply_rms_prop",
):
    """Build apply_rms_prop for the given descriptions."""
    util.check_kernel_name(kernel_name)
    util.check_dtype_rule(var.get("dtype").lower(), ("float32",))
    shape_var = util.scalar2tensor_one(var.get("shape"))
    util.check_shape_rule(shape_var)
    util.check_tensor_shape_size(shape_var, SHAPE_SIZE_LIMIT)
    shape_ms = util.scalar2tensor_one(ms.get("shape"))
    util.check_shape_rule(shape_ms)
    util.check_tensor_shape_size(shape_ms, SHAPE_SIZE_LIMIT)
    shape_mom = util.scalar2tensor_one(mom.get("shape"))
    util.check_shape_rule(shape_mom)
    util.check_tensor_shape_size(shape_mom, SHAPE_SIZE_LIMIT)
    shape_grad = util.scalar2tensor_one(grad.get("shape"))
    util.check_shape_rule(shape_grad)
    util.check_tensor_shape_size(shape_grad, SHAPE_SIZE_LIMIT)
    data_var = tvm.placeholder(shape_var, name="data_var", dtype=var.get("dtype").lower())
    data_ms = tvm.placeholder(shape_ms, name="data_ms", dtype=ms.get("dtype").lower())
    data_mom = tvm.placeholder(shape_mom, name="data_mom", dtype=mom.get("dtype").lower())
    data_grad = tvm.placeholder(shape_grad, name="data_grad", dtype=grad.get("dtype").lower())
    res = apply_rms_prop_compute(
        data_var,
        data_ms,
        data_mom,
        data_grad,
        var_out,
        ms_out,
        mom_out,
        lr,
        rho,
        momentum,
        epsilon,
        kernel_name,
    )
    with tvm.target.cce():
        sch = generic.auto_schedule(res)
    config = {"name": kernel_name, "tensor_list": [data_var, data_ms, data_mom, data_grad, *res]}
    te.lang.cce.cce_build_code(sch, config)
