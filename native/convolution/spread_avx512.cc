// Pixels put onto an image, for AVX-512.
#include "convolution/avx512.h"
#include "convolution/spread.h"

namespace npu::convolution {
namespace {

template <class T>
void spread_pixels(const float* from, std::int64_t count, bool add, void* to) {
  auto* out = static_cast<typename T::Value*>(to);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 lanes = first_lanes(count - i);
    __m512 value = Float32::load(from + i, lanes);
    if (add) value = _mm512_add_ps(value, T::load(out + i, lanes));
    T::store(out + i, lanes, value);
  }
}

}  // namespace

SpreadFn spread_avx512(DType type) {
  if (type == DType::Float32) return spread_pixels<Float32>;
  return type == DType::BFloat16 ? spread_pixels<BFloat16Bits> : nullptr;
}

}  // namespace npu::convolution
