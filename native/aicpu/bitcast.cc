// bitcast: reinterprets the bytes of a tensor as another element type.
#include <cstring>

#include "aicpu/dispatch.h"

namespace npu::aicpu {
namespace {

Status bitcast(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(1, 1));
  const Tensor& x = call.inputs[0];
  const Tensor& y = call.outputs[0];
  if (x.bytes() != y.bytes()) return Status::error("input and output differ in size");
  if (x.bytes()) std::memcpy(y.data, x.data, x.bytes());
  return Status::ok();
}

NPU_AICPU_KERNEL("bitcast", bitcast);

}  // namespace
}  // namespace npu::aicpu
