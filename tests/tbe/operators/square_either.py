"""x * x; the file asks whether the dimensions are known."""

from impl.util.util_common import align, is_dynamic_input
from tbe import dsl, tvm
from tbe.common.platform import platform_info
from tbe.common.utils import para_check, shape_util
from tbe.dsl.base import operation
from tbe.dsl.base.operation import in_dynamic
from tbe.dsl.instrinsic import cce_intrin


@operation.register_operator("SquareEither")
@para_check.check_op_params(para_check.REQUIRED_INPUT, para_check.REQUIRED_OUTPUT, para_check.KERNEL_NAME)
def square_either(x, y, kernel_name="square_either"):
    """Build square_either for the given descriptions, which may have unknown dimensions."""
    assert in_dynamic() == is_dynamic_input([x])
    operation.add_compile_info("block", align(cce_intrin.get_bit_len(x["dtype"]), 32))
    assert platform_info.get_soc_spec("UB_SIZE") > 0
    schedules, tensors = [], []
    for (case,) in dsl.classify([x], "elewise"):
        with dsl.compute():
            (shape,) = shape_util.variable_shape([case])
            data = tvm.placeholder(shape, name="data", dtype=x["dtype"])
            res = dsl.vmul(data, data)
            tensors.append([data, res])
        with tvm.target.cce():
            schedules.append(dsl.auto_schedule(res))
    dsl.build(schedules, {"name": kernel_name, "tensor_list": tensors})
