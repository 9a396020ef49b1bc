"""x times the first element of another tensor, plus its second: scalars that are read from tensors."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check


@register_op_compute("scale_by_element")
def scale_by_element_compute(x, factors, y, kernel_name="scale_by_element"):
    """What scale_by_element computes."""
    return dsl.vadds(dsl.vmuls(x, factors[0]), factors[1])


@para_check.check_op_params(
    para_check.REQUIRED_INPUT, para_check.REQUIRED_INPUT, para_check.REQUIRED_OUTPUT, para_check.KERNEL_NAME
)
def scale_by_element(x, factors, y, kernel_name="scale_by_element"):
    """Build scale_by_element for the given descriptions."""
    data = tvm.placeholder(x.get("shape"), name="data", dtype=x.get("dtype"))
    numbers = tvm.placeholder(factors.get("shape"), name="numbers", dtype=factors.get("dtype"))
    res = scale_by_element_compute(data, numbers, y, kernel_name)
    with tvm.target.cce():
        sch = dsl.auto_schedule(res)
    dsl.build(sch, {"name": kernel_name, "tensor_list": [data, numbers, res]})
