// Vectors of 16 channels: rows of pixels and activations.
#pragma once

#include "convolution/epilogue.h"
#include "core/elements.h"

namespace npu::convolution {
namespace {  // compiled for each file's own instructions

template <class T>
constexpr bool kCoarse = sizeof(typename T::Value) == 2;  // activations within 1e-4 are exact enough

// A row of pixels, widened, between `left` zeros and zeros up to `width`.
template <class T>
inline void widen_row(const typename T::Value* from, std::int64_t pixel, std::int64_t left,
                      std::int64_t count, std::int64_t width, Lanes lanes, float* row) {
  std::int64_t x = 0;
  for (; x < left; ++x) store(row + x * kLanes, zero());
  for (; x < left + count; ++x, from += pixel) store(row + x * kLanes, T::load(from, lanes));
  for (; x < width; ++x) store(row + x * kLanes, zero());
}

// x / (1 + 2^t): x times the sigmoid of -t ln 2.
template <bool kIsCoarse>
inline Vector over_one_plus_exp2(Vector x, Vector t) {
  t = minimum(splat(200.0f), t);  // more would be infinity too; NaN stays NaN
  const Vector n = nearest(t);
  const Vector r = t - n;
  Vector p;
  if constexpr (kIsCoarse) {
    p = fma(splat(0.055088684f), r, splat(0.24260405f));
    p = fma(p, r, splat(0.69327624f));
    p = fma(p, r, splat(0.99992894f));
  } else {
    p = fma(splat(0.001326697f), r, splat(0.0096754597f));
    p = fma(p, r, splat(0.055507426f));
    p = fma(p, r, splat(0.24022122f));
    p = fma(p, r, splat(0.69314695f));
    p = fma(p, r, splat(1.00000007f));
  }
  const Vector d = times_power(p, n) + splat(1.0f);
  return kIsCoarse ? x * reciprocal(d) : x / d;
}

constexpr float kMinusLog2E = -1.44269504f;

// With a constant activation the choice is made once for a whole kernel.
template <Activation kActivation, bool kIsCoarse>
inline Vector activate(const Epilogue& e, Vector x) {
  if constexpr (kActivation == Activation::None) {
    return x;
  } else if constexpr (kActivation == Activation::Clip) {  // NaN stays NaN
    return minimum(splat(e.high), maximum(splat(e.low), x));
  } else if constexpr (kActivation == Activation::Swish) {
    return over_one_plus_exp2<kIsCoarse>(x, x * splat(kMinusLog2E * e.alpha));
  } else {
    const Vector gate = fma(x, splat(e.alpha), splat(e.beta));
    return x * minimum(splat(1.0f), maximum(zero(), gate));
  }
}

// Calls function.template operator()<activation>() for the activation of an epilogue.
template <class Function>
auto with_activation(const Epilogue& e, Function&& function) {
  switch (e.activation) {
    case Activation::None:
      return function.template operator()<Activation::None>();
    case Activation::Clip:
      return function.template operator()<Activation::Clip>();
    case Activation::Swish:
      return function.template operator()<Activation::Swish>();
    case Activation::HardSwish:
      return function.template operator()<Activation::HardSwish>();
  }
  __builtin_unreachable();
}

}  // namespace
}  // namespace npu::convolution
