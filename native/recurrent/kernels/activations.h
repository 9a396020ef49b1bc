// Sigmoid and hyperbolic tangent of 16 numbers.
#pragma once

#include <initializer_list>

#include "core/elements.h"

namespace npu::recurrent {
namespace {  // compiled for each file's own instructions

// e to the x within 2 ulp; x must be within +-88.
inline Vector exponential(Vector x) {
  const Vector n = nearest(x * splat(1.44269504f));
  Vector r = fnma(n, splat(0.693359375f), x);
  r = fnma(n, splat(-2.12194440e-4f), r);
  Vector p = splat(1.0f / 5040.0f);
  for (const float c : {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) {
    p = fma(p, r, splat(c));
  }
  return times_power(p, n);
}

inline Vector clamp(Vector x, float limit) {  // NaN stays NaN
  return minimum(splat(limit), maximum(splat(-limit), x));
}

inline Vector sigmoid(Vector x) {
  const Vector e = exponential(clamp(zero() - x, 88.0f));
  return splat(1.0f) / (splat(1.0f) + e);
}

inline Vector tangent(Vector x) {
  const Vector e = exponential(clamp(x * splat(-2.0f), 44.0f));
  const Vector whole = (splat(1.0f) - e) / (splat(1.0f) + e);
  const Vector s = x * x;
  Vector p = splat(62.0f / 2835.0f);  // near zero the quotient loses digits, the series does not
  for (const float c : {-17.0f / 315.0f, 2.0f / 15.0f, -1.0f / 3.0f}) p = fma(p, s, splat(c));
  const Vector series = fma(p * s, x, x);
  return where_less(magnitude(x), splat(0.3f), series, whole);
}

}  // namespace
}  // namespace npu::recurrent
