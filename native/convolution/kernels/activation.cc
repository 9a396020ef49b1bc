// Activations in place.
#include "convolution/activation.h"

#include "convolution/kernels/elements.h"

namespace npu::convolution {
namespace {

template <class T>
void activate_all(const Epilogue& epilogue, void* values, std::int64_t count) {
  auto* value = static_cast<typename T::Value*>(values);
  with_activation(epilogue, [&]<Activation kActivation>() {
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const Lanes lanes = first_lanes(count - i);
      T::store(value + i, lanes, activate<kActivation, kCoarse<T>>(epilogue, T::load(value + i, lanes)));
    }
  });
}

}  // namespace

template <Vectors>
ActivationFn activation_for(DType type) {
  return for_type(type, []<class T>() -> ActivationFn { return activate_all<T>; });
}
template ActivationFn activation_for<kVectors>(DType);

}  // namespace npu::convolution
