"""x * factor + bias."""

from impl.util.platform_adapter import tbe, tvm


def check_supported(x, bias, y, factor=2, kernel_name="affine"):
    if factor == 13:
        return False, "13 brings bad luck"
    return True, ""


def affine(x, bias, y, factor=2, kernel_name="affine"):
    data = tvm.placeholder(x["shape"], name="data", dtype=x["dtype"])
    inputs = [data]
    result = tbe.vmuls(data, tvm.const(factor, x["dtype"]))
    if bias is not None:
        inputs.append(tvm.placeholder(bias["shape"], name="bias", dtype=bias["dtype"]))
        result = tbe.vadd(result, tbe.broadcast(inputs[1], x["shape"]))
    with tvm.target.cce():
        schedule = tbe.auto_schedule(result)
    tbe.build(schedule, {"name": kernel_name, "tensor_list": [*inputs, result]})
