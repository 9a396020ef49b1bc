// LSTM steps for AVX-512, with its bfloat16 products where the weights are bfloat16.
#include "recurrent/activations_avx512.h"
#include "recurrent/lstm.h"

namespace npu::recurrent {
namespace {

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
