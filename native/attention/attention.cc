// Attention: selects this machine's implementation and computes its scratch size.
#include "attention/attention.h"

#include "attention/layout.h"
#include "core/processor.h"

namespace npu::attention {
namespace {

std::int64_t in_unit(DType type) { return type == DType::BFloat16 ? 2 : 1; }

}  // namespace

std::int64_t forward_scratch(const Shape& shape, DType type) {
  return ForwardLayout(shape, in_unit(type)).bytes;
}

std::int64_t backward_scratch(const Shape& shape, DType type) {
  return BackwardLayout(shape, in_unit(type)).bytes;
}

ForwardFn forward(DType type) {
  return for_machine(type, [&]<Vectors kVectors>() { return forward_for<kVectors>(type); });
}

BackwardFn backward(DType type) {
  return for_machine(type, [&]<Vectors kVectors>() { return backward_for<kVectors>(type); });
}

}  // namespace npu::attention
