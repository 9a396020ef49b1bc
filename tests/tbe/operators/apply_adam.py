"""a step of Adam; also the new moments."""

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


@register_operator_compute("ApplyAdam", op_mode="dynamic", support_fusion=True)
def apply_adam_compute(
    var,
    m,
    v,
    grad,
    var_out,
    m_out,
    v_out,
    lr,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-08,
    kernel_name="apply_adam",
):
    """What apply_adam computes."""
    m = tbe.vadd(tbe.vmuls(m, beta1), tbe.vmuls(grad, 1 - beta1))
    v = tbe.vadd(tbe.vmuls(v, beta2), tbe.vmuls(tbe.vmul(grad, grad), 1 - beta2))
    step = tbe.vdiv(tbe.vmuls(m, lr), tbe.vadds(tbe.vsqrt(v), epsilon))
    return [tbe.vsub(var, step), m, v]


@register_operator("ApplyAdam")
@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_ATTR_FLOAT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.OPTION_ATTR_FLOAT,
    para_check.KERNEL_NAME,
)
def apply_adam(
    var,
    m,
    v,
    grad,
    var_out,
    m_out,
    v_out,
    lr,
    beta1=0.9,
    beta2=0.999,
    epsilon=1e-08,
    kernel_name="apply_adam",
):
    """Build apply_adam for the given descriptions, which may have unknown dimensions."""
    para_check.check_dtype(var.get("dtype").lower(), ("float32",), param_name="var")
    cases = classify([var, m, v, grad], OpPatternMode.ELEWISE)
    schedules, tensors = [], []
    for case_var, case_m, case_v, case_grad in cases:
        with tbe.compute():
            shapes = shape_util.variable_shape([case_var, case_m, case_v, case_grad])
            data_var = tvm.placeholder(shapes[0], name="data_var", dtype=var.get("dtype").lower())
            data_m = tvm.placeholder(shapes[1], name="data_m", dtype=m.get("dtype").lower())
            data_v = tvm.placeholder(shapes[2], name="data_v", dtype=v.get("dtype").lower())
            data_grad = tvm.placeholder(shapes[3], name="data_grad", dtype=grad.get("dtype").lower())
            res = apply_adam_compute(
                data_var,
                data_m,
                data_v,
                data_grad,
                var_out,
                m_out,
                v_out,
                lr,
                beta1,
                beta2,
                epsilon,
                kernel_name,
            )
            tensors.append([data_var, data_m, data_v, data_grad, *res])
        with tvm.target.cce():
            schedules.append(tbe.auto_schedule(res))
    tbe.build(schedules, {"name": kernel_name, "tensor_list": tensors})
