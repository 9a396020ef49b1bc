"""Twice the sign."""

from impl.kit_helper import step

from impl.util.platform_adapter import register_operator_compute, tbe, tvm


@register_operator_compute("Sign", support_fusion=True)
def sign_compute(x, y, kernel_name="sign"):
    return tbe.vadd(step(x, "gt", 2), step(x, "lt", -2))


def sign(x, y, kernel_name="sign"):
    data = tvm.placeholder(x["shape"], name="data", dtype=x["dtype"])
    result = sign_compute(data, y, kernel_name)
    with tvm.target.cce():
        schedule = tbe.auto_schedule(result)
    tbe.build(schedule, {"name": kernel_name, "tensor_list": [data, result]})
