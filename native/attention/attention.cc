// Attention: which implementation this machine can run, and the memory it works in.
#include "attention/attention.h"

#include "attention/layout.h"
#include "core/processor.h"

namespace npu::attention {
namespace {

std::int64_t in_unit(DType type) { return type == DType::BFloat16 ? 2 : 1; }

bool is_able(DType type) {
  if (type == DType::Float32) return has(Vectors::Avx512);
  return type == DType::BFloat16 && has(Vectors::Avx512Bf16);
}

}  // namespace

std::int64_t forward_scratch(const Shape& shape, DType type) {
  return ForwardLayout(shape, in_unit(type)).bytes;
}

std::int64_t backward_scratch(const Shape& shape, DType type) {
  return BackwardLayout(shape, in_unit(type)).bytes;
}

ForwardFn forward(DType type) {
  if (!is_able(type)) return nullptr;
  return type == DType::Float32 ? forward_float32_avx512 : forward_bfloat16_avx512;
}

BackwardFn backward(DType type) {
  if (!is_able(type)) return nullptr;
  return type == DType::Float32 ? backward_float32_avx512 : backward_bfloat16_avx512;
}

}  // namespace npu::attention
