// Products with few rows for AVX-512.
#include <immintrin.h>

#include <algorithm>

#include "product/narrow.h"

namespace npu::product {
namespace {

constexpr std::int64_t kLanes = 16;
constexpr std::int64_t kAhead =
    2;  // groups of rows that are fetched beforehand: none is longer than a page or two

__mmask16 lanes_of(std::int64_t count) {
  return count >= kLanes ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << count) - 1u);
}

__m512 finished(const NarrowProblem& p, __m512 sum) {  // NaN stays NaN
  return _mm512_min_ps(_mm512_set1_ps(p.high), _mm512_max_ps(_mm512_set1_ps(p.low), sum));
}

// kColumns columns of y from as many columns of b.
template <int kRows, int kColumns>
void dot_columns(const NarrowProblem& p, const NarrowOperands& o, std::int64_t column) {
  __m512 sum[kRows][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) sum[r][c] = _mm512_setzero_ps();
  }
  const float* b = o.b + column * p.b_column;
  for (std::int64_t k = 0; k < p.depth; k += kLanes) {
    const __mmask16 lanes = lanes_of(p.depth - k);
    __m512 weights[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const float* from = b + c * p.b_column + k;
      weights[c] = _mm512_maskz_loadu_ps(lanes, from);
      _mm_prefetch(from + kAhead * kColumns * p.b_column, _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 x = _mm512_maskz_loadu_ps(lanes, o.a + r * p.a_row + k);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) sum[r][c] = _mm512_fmadd_ps(x, weights[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      const float value = _mm512_reduce_add_ps(sum[r][c]) + (o.bias ? o.bias[column + c] : 0.0f);
      o.y[r * p.y_row + column + c] = _mm512_cvtss_f32(finished(p, _mm512_set1_ps(value)));
    }
  }
}

template <int kRows>
void dots(const NarrowProblem& p, const NarrowOperands& o, std::int64_t first, std::int64_t last) {
  constexpr int kColumns = kRows > 4 ? 2 : 4;
  for (; first + kColumns <= last; first += kColumns) dot_columns<kRows, kColumns>(p, o, first);
  for (; first < last; ++first) dot_columns<kRows, 1>(p, o, first);
}

// kTerms rows of b, times numbers of a, added to kRows rows of y.
template <int kRows, int kTerms>
void add_terms(const NarrowProblem& p, const NarrowOperands& o, std::int64_t term, std::int64_t first,
               std::int64_t last) {
  __m512 factor[kRows][kTerms];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTerms; ++t) {
      factor[r][t] = _mm512_set1_ps(o.a[r * p.a_row + (term + t) * p.a_column]);
    }
  }
  const float* b = o.b + term * p.b_row;
  for (std::int64_t c = first; c < last; c += kLanes) {
    const __mmask16 lanes = lanes_of(last - c);
    __m512 values[kTerms];
#pragma GCC unroll 4
    for (int t = 0; t < kTerms; ++t) {
      const float* from = b + t * p.b_row + c;
      values[t] = _mm512_maskz_loadu_ps(lanes, from);
      _mm_prefetch(from + kAhead * kTerms * p.b_row, _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      float* const y = o.y + r * p.y_row + c;
      __m512 sum = _mm512_maskz_loadu_ps(lanes, y);
#pragma GCC unroll 4
      for (int t = 0; t < kTerms; ++t) sum = _mm512_fmadd_ps(factor[r][t], values[t], sum);
      _mm512_mask_storeu_ps(y, lanes, sum);
    }
  }
}

template <int kRows>
void rows(const NarrowProblem& p, const NarrowOperands& o, std::int64_t first, std::int64_t last) {
  constexpr int kTerms = kRows > 4 ? 2 : 4;
  for (int r = 0; r < kRows; ++r) {
    for (std::int64_t c = first; c < last; ++c) o.y[r * p.y_row + c] = o.bias ? o.bias[c] : 0.0f;
  }
  std::int64_t term = 0;
  for (; term + kTerms <= p.depth; term += kTerms) add_terms<kRows, kTerms>(p, o, term, first, last);
  for (; term < p.depth; ++term) add_terms<kRows, 1>(p, o, term, first, last);
  for (int r = 0; r < kRows; ++r) {
    for (std::int64_t c = first; c < last; c += kLanes) {
      float* const y = o.y + r * p.y_row + c;
      const __mmask16 lanes = lanes_of(last - c);
      _mm512_mask_storeu_ps(y, lanes, finished(p, _mm512_maskz_loadu_ps(lanes, y)));
    }
  }
}

template <int kTerms>
void outer(const NarrowProblem& p, const NarrowOperands& o, std::int64_t first, std::int64_t last) {
  const bool streams = p.streams && p.columns % kLanes == 0 && p.y_row % kLanes == 0 &&
                       reinterpret_cast<std::uintptr_t>(o.y) % 64 == 0;
  for (std::int64_t r = first; r < last; ++r) {
    __m512 factor[kTerms];
    for (int t = 0; t < kTerms; ++t) factor[t] = _mm512_set1_ps(o.a[r * p.a_row + t * p.a_column]);
    float* const y = o.y + r * p.y_row;
    for (std::int64_t c = 0; c < p.columns; c += kLanes) {
      const __mmask16 lanes = lanes_of(p.columns - c);
      __m512 sum = o.bias ? _mm512_maskz_loadu_ps(lanes, o.bias + c) : _mm512_setzero_ps();
#pragma GCC unroll 8
      for (int t = 0; t < kTerms; ++t) {
        sum = _mm512_fmadd_ps(factor[t], _mm512_maskz_loadu_ps(lanes, o.b + t * p.b_row + c), sum);
      }
      sum = finished(p, sum);
      if (streams) {
        _mm512_stream_ps(y + c, sum);
      } else if (lanes == 0xffff) {
        _mm512_storeu_ps(y + c, sum);
      } else {
        _mm512_mask_storeu_ps(y + c, lanes, sum);
      }
    }
  }
  if (streams) _mm_sfence();
}

// The function of a table for 1 to kNarrow rows or terms.
NarrowFn chosen(const NarrowFn (&table)[kNarrow], std::int64_t count) { return table[count - 1]; }

constexpr NarrowFn kDots[kNarrow] = {dots<1>, dots<2>, dots<3>, dots<4>, dots<5>, dots<6>, dots<7>, dots<8>};
constexpr NarrowFn kRowsOf[kNarrow] = {rows<1>, rows<2>, rows<3>, rows<4>,
                                       rows<5>, rows<6>, rows<7>, rows<8>};
constexpr NarrowFn kOuter[kNarrow] = {outer<1>, outer<2>, outer<3>, outer<4>,
                                      outer<5>, outer<6>, outer<7>, outer<8>};

constexpr NarrowKernels kKernels = {
    [](const NarrowProblem& p, const NarrowOperands& o, std::int64_t first, std::int64_t last) {
      chosen(kDots, p.rows)(p, o, first, last);
    },
    [](const NarrowProblem& p, const NarrowOperands& o, std::int64_t first, std::int64_t last) {
      chosen(kRowsOf, p.rows)(p, o, first, last);
    },
    [](const NarrowProblem& p, const NarrowOperands& o, std::int64_t first, std::int64_t last) {
      chosen(kOuter, p.depth)(p, o, first, last);
    },
};

}  // namespace

const NarrowKernels* narrow_avx512() { return &kKernels; }

}  // namespace npu::product
