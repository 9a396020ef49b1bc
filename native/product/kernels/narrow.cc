// Products with few rows.
#include "product/narrow.h"

#include "core/elements.h"

namespace npu::product {
namespace {

constexpr std::int64_t kAhead =
    2;  // groups of rows that are fetched beforehand: none is longer than a page or two

template <class T>
using Value = typename T::Value;

// A number in all lanes.
template <class T>
Vector spread(const Value<T>* from) {
#ifdef __AVX512BF16__
  if constexpr (T::kInWord == 2) return splat(_mm512_cvtss_f32(T::load(from, 1)));
#endif
  return T::splat_word(from);
}

// The operands of one element type.
template <class T>
struct Typed {
  explicit Typed(const NarrowOperands& o)
      : a(static_cast<const Value<T>*>(o.a)),
        b(static_cast<const Value<T>*>(o.b)),
        bias(static_cast<const Value<T>*>(o.bias)),
        y(static_cast<Value<T>*>(o.y)) {}

  Vector start(Lanes lanes, std::int64_t column) const {
    return bias ? T::load(bias + column, lanes) : zero();
  }

  const Value<T>* a;
  const Value<T>* b;
  const Value<T>* bias;
  Value<T>* y;
};

Vector finished(const NarrowProblem& p, Vector sum) {  // NaN stays NaN
  return minimum(splat(p.high), maximum(splat(p.low), sum));
}

// kColumns columns of y from as many columns of b.
template <class T, int kRows, int kColumns>
void dot_columns(const NarrowProblem& p, const Typed<T>& o, std::int64_t column) {
  Vector sum[kRows][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) sum[r][c] = zero();
  }
  const Value<T>* b = o.b + column * p.b_column;
  for (std::int64_t k = 0; k < p.depth; k += kLanes) {
    const Lanes lanes = first_lanes(p.depth - k);
    Vector weights[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const Value<T>* from = b + c * p.b_column + k;
      weights[c] = T::load(from, lanes);
      _mm_prefetch(from + kAhead * kColumns * p.b_column, _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vector x = T::load(o.a + r * p.a_row + k, lanes);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) sum[r][c] = fma(x, weights[c], sum[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      const Vector total = splat(sum_of(sum[r][c]));
      T::store(o.y + r * p.y_row + column + c, 1, finished(p, total + o.start(1, column + c)));
    }
  }
}

template <class T, int kRows>
void dots(const NarrowProblem& p, const NarrowOperands& operands, std::int64_t first, std::int64_t last) {
  constexpr int kColumns = kRegisters >= 32 ? (kRows > 4 ? 2 : 4) : kRows > 2 ? 1 : 2;
  const Typed<T> o(operands);
  for (; first + kColumns <= last; first += kColumns) dot_columns<T, kRows, kColumns>(p, o, first);
  for (; first < last; ++first) dot_columns<T, kRows, 1>(p, o, first);
}

constexpr std::int64_t kBlock = 512;  // columns whose sums stay in the nearest cache

// kTerms rows of b, times numbers of a, added to kRows rows of sums.
template <class T, int kRows, int kTerms>
void add_terms(const NarrowProblem& p, const Typed<T>& o, std::int64_t term, std::int64_t first,
               std::int64_t columns, float (&sums)[kRows][kBlock]) {
  Vector factor[kRows][kTerms];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTerms; ++t) factor[r][t] = spread<T>(o.a + r * p.a_row + (term + t) * p.a_column);
  }
  const Value<T>* b = o.b + term * p.b_row + first;
  for (std::int64_t c = 0; c < columns; c += kLanes) {
    const Lanes lanes = first_lanes(columns - c);
    Vector values[kTerms];
#pragma GCC unroll 4
    for (int t = 0; t < kTerms; ++t) {
      const Value<T>* from = b + t * p.b_row + c;
      values[t] = T::load(from, lanes);
      _mm_prefetch(from + kAhead * kTerms * p.b_row, _MM_HINT_T0);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Vector sum = load(sums[r] + c);
#pragma GCC unroll 4
      for (int t = 0; t < kTerms; ++t) sum = fma(factor[r][t], values[t], sum);
      store(sums[r] + c, sum);
    }
  }
}

template <class T, int kRows>
void row_block(const NarrowProblem& p, const Typed<T>& o, std::int64_t first, std::int64_t columns) {
  constexpr int kTerms = kRows > 4 ? 2 : 4;
  alignas(64) float sums[kRows][kBlock];
  for (int r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < columns; c += kLanes) {
      store(sums[r] + c, o.start(first_lanes(columns - c), first + c));
    }
  }
  std::int64_t term = 0;
  for (; term + kTerms <= p.depth; term += kTerms) {
    add_terms<T, kRows, kTerms>(p, o, term, first, columns, sums);
  }
  for (; term < p.depth; ++term) add_terms<T, kRows, 1>(p, o, term, first, columns, sums);
  for (int r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < columns; c += kLanes) {
      T::store(o.y + r * p.y_row + first + c, first_lanes(columns - c), finished(p, load(sums[r] + c)));
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
  Vector factor[kRows][kTerms];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTerms; ++t) factor[r][t] = spread<T>(o.a + (row + r) * p.a_row + t * p.a_column);
  }
  for (std::int64_t c = 0; c < p.columns; c += 2 * kLanes) {
    const Lanes lanes[2] = {first_lanes(p.columns - c), first_lanes(p.columns - c - kLanes)};
    Vector sum[kRows][2];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const std::int64_t column = c + half * kLanes;
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) sum[r][half] = o.start(lanes[half], column);
#pragma GCC unroll 8
      for (int t = 0; t < kTerms; ++t) {
        const Vector values = T::load(o.b + t * p.b_row + column, lanes[half]);
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) sum[r][half] = fma(factor[r][t], values, sum[r][half]);
      }
    }
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r) {
      Value<T>* const y = o.y + (row + r) * p.y_row + c;
      const Vector low = finished(p, sum[r][0]), high = finished(p, sum[r][1]);
      if (streams) {
        T::stream_two(y, low, high);
      } else {
        T::store(y, lanes[0], low);
        T::store(y + kLanes, lanes[1], high);
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

template <Vectors>
const NarrowKernels* narrow_for(DType type) {
  return for_type(type, []<class T>() { return &Tables<T>::kKernels; });
}
template const NarrowKernels* narrow_for<kVectors>(DType);

}  // namespace npu::product
