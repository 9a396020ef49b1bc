// LSTM steps for AVX-512, with its bfloat16 products where the weights are bfloat16.
#include <immintrin.h>

#include "recurrent/lstm.h"

namespace npu::recurrent {
namespace {

inline __m512 splat(float value) { return _mm512_set1_ps(value); }

// e to the x within 2 ulp; x must lie within +-88.
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

inline void finish_unit(const LstmStep& s, std::int64_t n, std::int64_t unit, const __m512 gates[4]) {
  const std::int64_t at = n * s.hidden + unit;
  const __m512 kept = _mm512_mul_ps(sigmoid(gates[1]), _mm512_loadu_ps(s.c + at));
  const __m512 c = _mm512_fmadd_ps(sigmoid(gates[0]), tangent(gates[2]), kept);
  const __m512 h = _mm512_mul_ps(sigmoid(gates[3]), tangent(c));
  _mm512_storeu_ps(s.c + at, c);
  _mm512_storeu_ps(s.h_next + at, h);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(s.h16_next + at),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(h)));
}

struct Float32Weights {
  static constexpr std::int64_t kDepth = 1;  // values of h in one product
  static __m512 load(const void* weights, std::int64_t at) {
    return _mm512_loadu_ps(static_cast<const float*>(weights) + at);
  }
  static __m512 product(const LstmStep& s, std::int64_t n, std::int64_t k, __m512 w, __m512 sum) {
    return _mm512_fmadd_ps(splat(s.h[n * s.hidden + k]), w, sum);
  }
};

struct BFloat16Weights {
  static constexpr std::int64_t kDepth = 2;
  static __m512 load(const void* weights, std::int64_t at) {
    return _mm512_loadu_ps(static_cast<const float*>(weights) + at / 2);
  }
  static __m512 product(const LstmStep& s, std::int64_t n, std::int64_t k, __m512 w, __m512 sum) {
    int pair;
    __builtin_memcpy(&pair, s.h16 + n * s.hidden + k, sizeof pair);
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)),
                            reinterpret_cast<__m512bh>(w));
  }
};

template <class Weights, int kBatch>
void block(const LstmStep& s, std::int64_t index) {
  const std::int64_t unit = index * kUnits, row = kGates * kUnits;
  __m512 sum[kBatch][kGates];
  for (int n = 0; n < kBatch; ++n) {
    for (int g = 0; g < kGates; ++g) {
      sum[n][g] = _mm512_loadu_ps(s.projected + (n * kGates + g) * s.hidden + unit);
    }
  }
  const std::int64_t base = index * s.hidden * row;
  for (std::int64_t k = 0; k < s.hidden; k += Weights::kDepth) {
    for (int g = 0; g < kGates; ++g) {
      const __m512 w = Weights::load(s.weights, base + k * row + g * kUnits * Weights::kDepth);
      for (int n = 0; n < kBatch; ++n) sum[n][g] = Weights::product(s, n, k, w, sum[n][g]);
    }
  }
  for (int n = 0; n < kBatch; ++n) finish_unit(s, n, unit, sum[n]);
}

template <class Weights, int kBatch>
void blocks(const LstmStep& s, std::int64_t first, std::int64_t last, bool backwards) {
  for (std::int64_t i = first; i < last; ++i) block<Weights, kBatch>(s, backwards ? first + last - 1 - i : i);
}

template <class Weights>
void step(const LstmStep& s, std::int64_t first, std::int64_t last, bool backwards) {
  static constexpr LstmStepFn kByBatch[] = {blocks<Weights, 1>, blocks<Weights, 2>, blocks<Weights, 3>,
                                            blocks<Weights, 4>};
  kByBatch[s.batch - 1](s, first, last, backwards);
}

}  // namespace

void lstm_step_f32_avx512(const LstmStep& s, std::int64_t first, std::int64_t last, bool backwards) {
  step<Float32Weights>(s, first, last, backwards);
}

void lstm_step_bf16_avx512(const LstmStep& s, std::int64_t first, std::int64_t last, bool backwards) {
  step<BFloat16Weights>(s, first, last, backwards);
}

}  // namespace npu::recurrent
