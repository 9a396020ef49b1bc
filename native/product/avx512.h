// Vectors of 16 numbers for AVX-512: masks, transposes and activations.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "product/product.h"

namespace npu::product {
namespace {  // compiled for each file's own instructions

constexpr std::int64_t kLanes = 16;
constexpr float kLog2E = 1.44269504f;

inline __mmask16 first_lanes(std::int64_t count) {
  return count >= kLanes ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1u);
}

// Not std::min: files with these instructions must not have code in common with others.
inline std::int64_t smaller(std::int64_t x, std::int64_t y) { return x < y ? x : y; }

inline __m512 splat(float value) { return _mm512_set1_ps(value); }

// 2^t for t <= 0.
inline __m512 exp2_of(__m512 t) {
  const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT);
  const __m512 r = _mm512_sub_ps(t, n);
  __m512 p = _mm512_fmadd_ps(splat(0.001326697f), r, splat(0.0096754597f));
  p = _mm512_fmadd_ps(p, r, splat(0.055507426f));
  p = _mm512_fmadd_ps(p, r, splat(0.24022122f));
  p = _mm512_fmadd_ps(p, r, splat(0.69314695f));
  p = _mm512_fmadd_ps(p, r, splat(1.00000007f));
  return _mm512_scalef_ps(p, n);
}

// x (1 + erf(x / sqrt 2)) / 2, the error function by the rational approximation 7.1.26 of Abramowitz and
// Stegun.
inline __m512 gelu_erf(__m512 x) {
  const __m512 z = _mm512_mul_ps(_mm512_abs_ps(x), splat(0.70710678f));
  const __m512 t = _mm512_div_ps(splat(1.0f), _mm512_fmadd_ps(z, splat(0.3275911f), splat(1.0f)));
  __m512 p = _mm512_fmadd_ps(splat(1.061405429f), t, splat(-1.453152027f));
  p = _mm512_fmadd_ps(p, t, splat(1.421413741f));
  p = _mm512_fmadd_ps(p, t, splat(-0.284496736f));
  p = _mm512_fmadd_ps(p, t, splat(0.254829592f));
  const __m512 e = exp2_of(_mm512_mul_ps(_mm512_mul_ps(z, z), splat(-kLog2E)));
  const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(p, t), e);  // 1 - erf(z)
  const __m512 half = _mm512_mul_ps(x, splat(0.5f));
  const __m512 lower = _mm512_mul_ps(half, tail);
  const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return _mm512_mask_mov_ps(_mm512_sub_ps(x, lower), negative, lower);
}

// x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3)))
inline __m512 gelu_tanh(__m512 x) {
  const __m512 inner = _mm512_fmadd_ps(_mm512_mul_ps(x, x), splat(0.044715f), splat(1.0f));
  const __m512 t = _mm512_mul_ps(_mm512_mul_ps(x, inner), splat(-2.0f * 0.79788456f * kLog2E));
  const __m512 power = exp2_of(_mm512_min_ps(splat(126.0f), t));
  return _mm512_div_ps(x, _mm512_add_ps(splat(1.0f), power));
}

inline __m512 activate(const Epilogue& e, __m512 x) {
  switch (e.activation) {
    case Activation::None:
      return x;
    case Activation::Clip:  // NaN stays NaN
      return _mm512_min_ps(splat(e.high), _mm512_max_ps(splat(e.low), x));
    case Activation::GeluErf:
      return gelu_erf(x);
    case Activation::GeluTanh:
      return gelu_tanh(x);
  }
  __builtin_unreachable();
}

// Sixteen rows of 16 numbers become 16 columns.
inline void transpose(__m512 (&r)[16]) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  const auto low = [](__m512 x, __m512 y) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
  };
  const auto high = [](__m512 x, __m512 y) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
  };
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = low(t[i], t[i + 2]);
    r[i + 1] = high(t[i], t[i + 2]);
    r[i + 2] = low(t[i + 1], t[i + 3]);
    r[i + 3] = high(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

}  // namespace
}  // namespace npu::product
