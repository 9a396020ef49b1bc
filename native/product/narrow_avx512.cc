// Products with few rows for AVX-512.
#include <immintrin.h>

#include "core/avx512.h"
#include "product/narrow.h"

namespace npu::product {
namespace {

constexpr std::int64_t kAhead =
    2;  // groups of rows that are fetched beforehand: none is longer than a page or two

__m512 load(__mmask16 lanes, const float* from) { return _mm512_maskz_loadu_ps(lanes, from); }

// A bfloat16 is the upper half of a float32.
struct Bfloat16 {
  std::uint16_t bits;
};

__m512 load(__mmask16 lanes, const Bfloat16* from) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

void store(float* to, __mmask16 lanes, __m512 x) { _mm512_mask_storeu_ps(to, lanes, x); }
void store(Bfloat16* to, __mmask16 lanes, __m512 x) {
  _mm256_mask_storeu_epi16(to, lanes, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

// Two vectors side by side, past the caches.
void stream(float* to, __m512 low, __m512 high) {
  _mm512_stream_ps(to, low);
  _mm512_stream_ps(to + kLanes, high);
}
void stream(Bfloat16* to, __m512 low, __m512 high) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to),
                      reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}

template <class T>
__m512 splat(const T* from) {
  return _mm512_broadcastss_ps(_mm512_castps512_ps128(load(1, from)));
}

// The operands of one element type.
template <class T>
struct Typed {
  explicit Typed(const NarrowOperands& o)
      : a(static_cast<const T*>(o.a)),
        b(static_cast<const T*>(o.b)),
        bias(static_cast<const T*>(o.bias)),
        y(static_cast<T*>(o.y)) {}

  __m512 start(__mmask16 lanes, std::int64_t column) const {
    return bias ? load(lanes, bias + column) : _mm512_setzero_ps();
  }

  const T* a;
  const T* b;
  const T* bias;
  T* y;
};

__m512 finished(const NarrowProblem& p, __m512 sum) {  // NaN stays NaN
  return _mm512_min_ps(_mm512_set1_ps(p.high), _mm512_max_ps(_mm512_set1_ps(p.low), sum));
}

// kColumns columns of y from as many columns of b.
template <class T, int kRows, int kColumns>
void dot_columns(const NarrowProblem& p, const Typed<T>& o, std::int64_t column) {
  __m512 sum[kRows][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) sum[r][c] = _mm512_setzero_ps();
  }
  const T* b = o.b + column * p.b_column;
  for (std::int64_t k = 0; k < p.depth; k += kLanes) {
    const __mmask16 lanes = first_lanes(p.depth - k);
    __m512 weights[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const T* from = b + c * p.b_column + k;
      weights[c] = load(lanes, from);
      _mm_prefetch(from + kAhead * kColumns * p.b_column, _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 x = load(lanes, o.a + r * p.a_row + k);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) sum[r][c] = _mm512_fmadd_ps(x, weights[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      const __m512 total = _mm512_set1_ps(_mm512_reduce_add_ps(sum[r][c]));
      store(o.y + r * p.y_row + column + c, 1, finished(p, _mm512_add_ps(total, o.start(1, column + c))));
    }
  }
}

template <class T, int kRows>
void dots(const NarrowProblem& p, const NarrowOperands& operands, std::int64_t first, std::int64_t last) {
  constexpr int kColumns = kRows > 4 ? 2 : 4;
  const Typed<T> o(operands);
  for (; first + kColumns <= last; first += kColumns) dot_columns<T, kRows, kColumns>(p, o, first);
  for (; first < last; ++first) dot_columns<T, kRows, 1>(p, o, first);
}

constexpr std::int64_t kBlock = 512;  // columns whose sums stay in the nearest cache

// kTerms rows of b, times numbers of a, added to kRows rows of sums.
template <class T, int kRows, int kTerms>
void add_terms(const NarrowProblem& p, const Typed<T>& o, std::int64_t term, std::int64_t first,
               std::int64_t columns, float (&sums)[kRows][kBlock]) {
  __m512 factor[kRows][kTerms];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTerms; ++t) factor[r][t] = splat(o.a + r * p.a_row + (term + t) * p.a_column);
  }
  const T* b = o.b + term * p.b_row + first;
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    const __mmask16 lanes = first_lanes(columns - c);
    __m512 values[kTerms];
#pragma GCC unroll 4
    for (int t = 0; t < kTerms; ++t) {
      const T* from = b + t * p.b_row + c;
      values[t] = load(lanes, from);
      _mm_prefetch(from + kAhead * kTerms * p.b_row, _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      __m512 sum = _mm512_load_ps(sums[r] + c);
#pragma GCC unroll 4
      for (int t = 0; t < kTerms; ++t) sum = _mm512_fmadd_ps(factor[r][t], values[t], sum);
      _mm512_store_ps(sums[r] + c, sum);
    }
  }
}

template <class T, int kRows>
void row_block(const NarrowProblem& p, const Typed<T>& o, std::int64_t first, std::int64_t columns) {
  constexpr int kTerms = kRows > 4 ? 2 : 4;
  alignas(64) float sums[kRows][kBlock];
  for (int r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < columns; c += kLanes) {
      _mm512_store_ps(sums[r] + c, o.start(first_lanes(columns - c), first + c));
    }
  }
  std::int64_t term = 0;
  for (; term + kTerms <= p.depth; term += kTerms) {
    add_terms<T, kRows, kTerms>(p, o, term, first, columns, sums);
  }
  for (; term < p.depth; ++term) add_terms<T, kRows, 1>(p, o, term, first, columns, sums);
  for (int r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < columns; c += kLanes) {
      store(o.y + r * p.y_row + first + c, first_lanes(columns - c),
            finished(p, _mm512_load_ps(sums[r] + c)));
    }
  }
}

template <class T, int kRows>
void rows(const NarrowProblem& p, const NarrowOperands& operands, std::int64_t first, std::int64_t last) {
  const Typed<T> o(operands);
  for (; first < last; first += kBlock) {
    row_block<T, kRows>(p, o, first, last - first < kBlock ? last - first : kBlock);
  }
}

// kRows rows of y, two vectors at a time.
template <class T, int kTerms, int kRows>
void outer_rows(const NarrowProblem& p, const Typed<T>& o, std::int64_t row, bool streams) {
  __m512 factor[kRows][kTerms];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTerms; ++t) factor[r][t] = splat(o.a + (row + r) * p.a_row + t * p.a_column);
  }
  for (std::int64_t c = 0; c < p.columns; c += 2 * kLanes) {
    const __mmask16 lanes[2] = {first_lanes(p.columns - c), first_lanes(p.columns - c - kLanes)};
    __m512 sum[kRows][2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const std::int64_t column = c + half * kLanes;
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) sum[r][half] = o.start(lanes[half], column);
#pragma GCC unroll 8
      for (int t = 0; t < kTerms; ++t) {
        const __m512 values = load(lanes[half], o.b + t * p.b_row + column);
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) sum[r][half] = _mm512_fmadd_ps(factor[r][t], values, sum[r][half]);
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
      T* const y = o.y + (row + r) * p.y_row + c;
      const __m512 low = finished(p, sum[r][0]), high = finished(p, sum[r][1]);
      if (streams) {
        stream(y, low, high);
      } else {
        store(y, lanes[0], low);
        store(y + kLanes, lanes[1], high);
      }
    }
  }
}

template <class T, int kTerms>
void outer(const NarrowProblem& p, const NarrowOperands& operands, std::int64_t first, std::int64_t last) {
  const Typed<T> o(operands);
  const bool streams = p.streams && p.columns % (2 * kLanes) == 0 && p.y_row % (2 * kLanes) == 0 &&
                       reinterpret_cast<std::uintptr_t>(o.y) % 64 == 0;
  for (; first + 2 <= last; first += 2) outer_rows<T, kTerms, 2>(p, o, first, streams);
  if (first < last) outer_rows<T, kTerms, 1>(p, o, first, streams);
  if (streams) _mm_sfence();
}

// The functions for 1 to kNarrow rows or terms, of one element type.
template <class T>
struct Tables {
  static constexpr NarrowFn kDots[kNarrow] = {dots<T, 1>, dots<T, 2>, dots<T, 3>, dots<T, 4>,
                                              dots<T, 5>, dots<T, 6>, dots<T, 7>, dots<T, 8>};
  static constexpr NarrowFn kRowsOf[kNarrow] = {rows<T, 1>, rows<T, 2>, rows<T, 3>, rows<T, 4>,
                                                rows<T, 5>, rows<T, 6>, rows<T, 7>, rows<T, 8>};
  static constexpr NarrowFn kOuter[kNarrow] = {outer<T, 1>, outer<T, 2>, outer<T, 3>, outer<T, 4>,
                                               outer<T, 5>, outer<T, 6>, outer<T, 7>, outer<T, 8>};

  static void dots_of(const NarrowProblem& p, const NarrowOperands& o, std::int64_t first,
                      std::int64_t last) {
    kDots[p.rows - 1](p, o, first, last);
  }
  static void rows_of(const NarrowProblem& p, const NarrowOperands& o, std::int64_t first,
                      std::int64_t last) {
    kRowsOf[p.rows - 1](p, o, first, last);
  }
  static void outer_of(const NarrowProblem& p, const NarrowOperands& o, std::int64_t first,
                       std::int64_t last) {
    kOuter[p.depth - 1](p, o, first, last);
  }

  static constexpr NarrowKernels kKernels = {dots_of, rows_of, outer_of};
};

}  // namespace

const NarrowKernels* narrow_float32_avx512() { return &Tables<float>::kKernels; }
const NarrowKernels* narrow_bfloat16_avx512() { return &Tables<Bfloat16>::kKernels; }

}  // namespace npu::product
