// Activations in place for AVX-512.
#include "convolution/activation.h"
#include "convolution/avx512.h"

namespace npu::convolution {
namespace {

template <class T>
void activate_all(const Epilogue& epilogue, void* values, std::int64_t count) {
  auto* value = static_cast<typename T::Value*>(values);
  with_activation(epilogue, [&]<Activation kActivation>() {
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const __mmask16 lanes = first_lanes(count - i);
      T::store(value + i, lanes, activate<kActivation, T::kCoarse>(epilogue, T::load(value + i, lanes)));
    }
  });
}

}  // namespace

ActivationFn activation_avx512(DType type) {
  if (type == DType::Float32) return activate_all<Float32>;
  return type == DType::BFloat16 ? activate_all<BFloat16Bits> : nullptr;
}

}  // namespace npu::convolution
