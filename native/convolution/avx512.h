// Vectors of 16 channels for AVX-512: element types and activations.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "convolution/epilogue.h"

namespace npu::convolution {

inline constexpr std::int64_t kLanes = 16;

inline constexpr __mmask16 kAllLanes = 0xffff;

inline __m512 splat(float value) { return _mm512_set1_ps(value); }

inline __mmask16 first_lanes(std::int64_t count) {
  return count >= kLanes ? kAllLanes : static_cast<__mmask16>((1u << count) - 1u);
}

struct Float32 {
  using Value = float;
  static constexpr bool kCoarse = false;
  static __m512 load(const float* from, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
  static void store(float* to, __mmask16 lanes, __m512 value) {
    if (lanes == kAllLanes) return _mm512_storeu_ps(to, value);  // a masked store takes several times as long
    _mm512_mask_storeu_ps(to, lanes, value);
  }
};

struct BFloat16Bits {
  using Value = std::uint16_t;
  static constexpr bool kCoarse = true;  // activations within 1e-4 are exact enough
  static __m512 load(const std::uint16_t* from, __mmask16 lanes) {
    const __m512i wide =
        _mm512_cvtepu16_epi32(lanes == kAllLanes ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))
                                                 : _mm256_maskz_loadu_epi16(lanes, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static void store(std::uint16_t* to, __mmask16 lanes, __m512 value) {
    const auto narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value));
    if (lanes == kAllLanes) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow);
    _mm256_mask_storeu_epi16(to, lanes, narrow);
  }
};

// A row of pixels, widened, between `left` zeros and zeros up to `width`.
template <class T>
inline void widen_row(const typename T::Value* from, std::int64_t pixel, std::int64_t left,
                      std::int64_t count, std::int64_t width, __mmask16 lanes, float* row) {
  std::int64_t x = 0;
  for (; x < left; ++x) _mm512_store_ps(row + x * kLanes, _mm512_setzero_ps());
  for (; x < left + count; ++x, from += pixel) _mm512_store_ps(row + x * kLanes, T::load(from, lanes));
  for (; x < width; ++x) _mm512_store_ps(row + x * kLanes, _mm512_setzero_ps());
}

// x / (1 + 2^t): x times the sigmoid of -t ln 2.
template <bool kCoarse>
inline __m512 over_one_plus_exp2(__m512 x, __m512 t) {
  t = _mm512_min_ps(splat(200.0f), t);  // more would be infinity too; NaN stays NaN
  const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT);
  const __m512 r = _mm512_sub_ps(t, n);
  __m512 p;
  if constexpr (kCoarse) {
    p = _mm512_fmadd_ps(splat(0.055088684f), r, splat(0.24260405f));
    p = _mm512_fmadd_ps(p, r, splat(0.69327624f));
    p = _mm512_fmadd_ps(p, r, splat(0.99992894f));
  } else {
    p = _mm512_fmadd_ps(splat(0.001326697f), r, splat(0.0096754597f));
    p = _mm512_fmadd_ps(p, r, splat(0.055507426f));
    p = _mm512_fmadd_ps(p, r, splat(0.24022122f));
    p = _mm512_fmadd_ps(p, r, splat(0.69314695f));
    p = _mm512_fmadd_ps(p, r, splat(1.00000007f));
  }
  const __m512 d = _mm512_add_ps(_mm512_scalef_ps(p, n), splat(1.0f));
  return kCoarse ? _mm512_mul_ps(x, _mm512_rcp14_ps(d)) : _mm512_div_ps(x, d);
}

inline constexpr float kMinusLog2E = -1.44269504f;

// With a constant activation the choice is made once for a whole kernel.
template <Activation kActivation, bool kCoarse>
inline __m512 activate(const Epilogue& e, __m512 x) {
  if constexpr (kActivation == Activation::None) {
    return x;
  } else if constexpr (kActivation == Activation::Clip) {  // NaN stays NaN
    return _mm512_min_ps(splat(e.high), _mm512_max_ps(splat(e.low), x));
  } else if constexpr (kActivation == Activation::Swish) {
    return over_one_plus_exp2<kCoarse>(x, _mm512_mul_ps(x, splat(kMinusLog2E * e.alpha)));
  } else {
    const __m512 gate = _mm512_fmadd_ps(x, splat(e.alpha), splat(e.beta));
    return _mm512_mul_ps(x, _mm512_min_ps(splat(1.0f), _mm512_max_ps(_mm512_setzero_ps(), gate)));
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

}  // namespace npu::convolution
