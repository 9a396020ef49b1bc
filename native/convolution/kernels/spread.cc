// Scatters pixels to an image with strides.
#include "convolution/spread.h"

#include "convolution/kernels/elements.h"

namespace npu::convolution {
namespace {

template <class T>
void spread_pixels(const float* from, std::int64_t count, bool add, void* to) {
  auto* out = static_cast<typename T::Value*>(to);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Lanes lanes = first_lanes(count - i);
    Vector value = Float32::load(from + i, lanes);
    if (add) value = value + T::load(out + i, lanes);
    T::store(out + i, lanes, value);
  }
}

}  // namespace

template <Vectors>
SpreadFn spread_for(DType type) {
  return for_type(type, []<class T>() -> SpreadFn { return spread_pixels<T>; });
}
template SpreadFn spread_for<kVectors>(DType);

}  // namespace npu::convolution
