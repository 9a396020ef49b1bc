"""Rows added up by segment."""

from tbe import dsl, tvm
from tbe.common.register import register_op_compute
from tbe.common.utils import para_check, shape_util


@register_op_compute("unsorted_segment_sum", op_mode="static")
def unsorted_segment_sum_compute(x, segment_ids, y, num_segments, kernel_name="unsorted_segment_sum"):
    """What unsorted_segment_sum computes."""
    return dsl.unsorted_segment_sum(x, segment_ids, num_segments)


@para_check.check_op_params(
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_INPUT,
    para_check.REQUIRED_OUTPUT,
    para_check.REQUIRED_ATTR_INT,
    para_check.KERNEL_NAME,
)
def unsorted_segment_sum(x, segment_ids, y, num_segments, kernel_name="unsorted_segment_sum"):
    """Build unsorted_segment_sum for the given descriptions."""
    para_check.check_dtype(x.get("dtype").lower(), ("float32", "int32"), param_name="x")
    para_check.check_shape(x.get("shape"), param_name="x")
    para_check.check_shape(segment_ids.get("shape"), param_name="segment_ids")
    data_x = tvm.placeholder(
        shape_util.shape_to_list(x.get("shape")), name="data_x", dtype=x.get("dtype").lower()
    )
    data_segment_ids = tvm.placeholder(
        shape_util.shape_to_list(segment_ids.get("shape")),
        name="data_segment_ids",
        dtype=segment_ids.get("dtype").lower(),
    )
    res = unsorted_segment_sum_compute(data_x, data_segment_ids, y, num_segments, kernel_name)
    with tvm.target.cce():
        schedule = dsl.auto_schedule(res)
    dsl.build(schedule, {"name": kernel_name, "tensor_list": [data_x, data_segment_ids, res]})
