// Sigmoid and hyperbolic tangent of 16 numbers for AVX-512.
#pragma once

#include <initializer_list>

#include "core/avx512.h"

namespace npu::recurrent {
namespace {  // compiled for each file's own instructions

// e to the x within 2 ulp; x must be within +-88.
inline __m512 exponential(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, splat(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  __m512 r = _mm512_fnmadd_ps(n, splat(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, splat(-2.12194440e-4f), r);
  __m512 p = splat(1.0f / 5040.0f);
  for (const float c : {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) {
    p = _mm512_fmadd_ps(p, r, splat(c));
  }
  return _mm512_scalef_ps(p, n);
}

inline __m512 clamp(__m512 x, float limit) {  // NaN stays NaN
  return _mm512_min_ps(splat(limit), _mm512_max_ps(splat(-limit), x));
}

inline __m512 sigmoid(__m512 x) {
  const __m512 e = exponential(clamp(_mm512_sub_ps(_mm512_setzero_ps(), x), 88.0f));
  return _mm512_div_ps(splat(1.0f), _mm512_add_ps(splat(1.0f), e));
}

inline __m512 tangent(__m512 x) {
  const __m512 e = exponential(clamp(_mm512_mul_ps(x, splat(-2.0f)), 44.0f));
  const __m512 whole = _mm512_div_ps(_mm512_sub_ps(splat(1.0f), e), _mm512_add_ps(splat(1.0f), e));
  const __m512 s = _mm512_mul_ps(x, x);
  __m512 p = splat(62.0f / 2835.0f);  // near zero the quotient loses digits, the series does not
  for (const float c : {-17.0f / 315.0f, 2.0f / 15.0f, -1.0f / 3.0f}) p = _mm512_fmadd_ps(p, s, splat(c));
  const __m512 series = _mm512_fmadd_ps(_mm512_mul_ps(p, s), x, x);
  const __mmask16 near = _mm512_cmp_ps_mask(_mm512_abs_ps(x), splat(0.3f), _CMP_LT_OQ);
  return _mm512_mask_blend_ps(near, whole, series);
}

}  // namespace
}  // namespace npu::recurrent
