// Activations of 16 numbers for AVX-512.
#pragma once

#include <cfloat>

#include "core/avx512.h"
#include "product/product.h"

namespace npu::product {
namespace {  // compiled for each file's own instructions

constexpr float kLog2E = 1.44269504f;

// 2^t, also of infinities: these have no fraction, but scalef gives infinity or 0 for NaN and them.
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
// Stegun. Infinity gives infinity, and minus infinity NaN, as the product of it and 0.
inline __m512 gelu_erf(__m512 x) {
  const __m512 z = _mm512_mul_ps(_mm512_abs_ps(x), splat(0.70710678f));
  const __m512 t = _mm512_div_ps(splat(1.0f), _mm512_fmadd_ps(z, splat(0.3275911f), splat(1.0f)));
  __m512 p = _mm512_fmadd_ps(splat(1.061405429f), t, splat(-1.453152027f));
  p = _mm512_fmadd_ps(p, t, splat(1.421413741f));
  p = _mm512_fmadd_ps(p, t, splat(-0.284496736f));
  p = _mm512_fmadd_ps(p, t, splat(0.254829592f));
  const __m512 e = exp2_of(_mm512_mul_ps(_mm512_mul_ps(z, z), splat(-kLog2E)));
  const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(p, t), e);  // 1 - erf(z)
  const __m512 finite = _mm512_min_ps(splat(FLT_MAX), x);     // or NaN, or minus infinity
  const __m512 half = _mm512_mul_ps(finite, splat(0.5f));
  const __m512 lower = _mm512_mul_ps(half, tail);
  const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return _mm512_mask_mov_ps(_mm512_sub_ps(x, lower), negative, lower);
}

// x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3)))
inline __m512 gelu_tanh(__m512 x) {
  const __m512 inner = _mm512_fmadd_ps(_mm512_mul_ps(x, x), splat(0.044715f), splat(1.0f));
  const __m512 t = _mm512_mul_ps(_mm512_mul_ps(x, inner), splat(-2.0f * 0.79788456f * kLog2E));
  return _mm512_div_ps(x, _mm512_add_ps(splat(1.0f), exp2_of(t)));
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

}  // namespace
}  // namespace npu::product
