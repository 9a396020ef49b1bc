// Activations of 16 numbers for AVX-512.
#pragma once

#include <cfloat>

#include "core/vectors.h"
#include "product/product.h"

namespace npu::product {
namespace {  // compiled for each file's own instructions

constexpr float kLog2E = 1.44269504f;

// 2^t, also of infinities: these have no fraction, but scalef gives infinity or 0 for NaN and them.
inline Vector exp2_of(Vector t) {
  const Vector n = nearest(t);
  const Vector r = t - n;
  Vector p = fma(splat(0.001326697f), r, splat(0.0096754597f));
  p = fma(p, r, splat(0.055507426f));
  p = fma(p, r, splat(0.24022122f));
  p = fma(p, r, splat(0.69314695f));
  p = fma(p, r, splat(1.00000007f));
  return times_power(p, n);
}

// x (1 + erf(x / sqrt 2)) / 2, the error function by the rational approximation 7.1.26 of Abramowitz and
// Stegun. Infinity gives infinity, and minus infinity NaN, as the product of it and 0.
inline Vector gelu_erf(Vector x) {
  const Vector z = magnitude(x) * splat(0.70710678f);
  const Vector t = splat(1.0f) / fma(z, splat(0.3275911f), splat(1.0f));
  Vector p = fma(splat(1.061405429f), t, splat(-1.453152027f));
  p = fma(p, t, splat(1.421413741f));
  p = fma(p, t, splat(-0.284496736f));
  p = fma(p, t, splat(0.254829592f));
  const Vector e = exp2_of(z * z * splat(-kLog2E));
  const Vector tail = p * t * e;                     // 1 - erf(z)
  const Vector finite = minimum(splat(FLT_MAX), x);  // or NaN, or minus infinity
  const Vector half = finite * splat(0.5f);
  const Vector lower = half * tail;
  return where_less(x, zero(), lower, x - lower);
}

// x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3)))
inline Vector gelu_tanh(Vector x) {
  const Vector inner = fma(x * x, splat(0.044715f), splat(1.0f));
  const Vector t = x * inner * splat(-2.0f * 0.79788456f * kLog2E);
  return x / (splat(1.0f) + exp2_of(t));
}

inline Vector activate(const Epilogue& e, Vector x) {
  switch (e.activation) {
    case Activation::None:
      return x;
    case Activation::Clip:  // NaN stays NaN
      return minimum(splat(e.high), maximum(splat(e.low), x));
    case Activation::GeluErf:
      return gelu_erf(x);
    case Activation::GeluTanh:
      return gelu_tanh(x);
  }
  __builtin_unreachable();
}

}  // namespace
}  // namespace npu::product
