// Bfloat16 products for AVX-512 with products of pairs.
#include <immintrin.h>

#include <cstring>
#include <iterator>

#include "product/ahead.h"
#include "product/avx512.h"
#include "product/pairs.h"

namespace npu::product {
namespace {

using Bits = std::uint16_t;  // of a bfloat16, the upper half of a float32

constexpr int kVectors = kPairColumns / kLanes;
constexpr int kPause = 16;                // pairs of a tile after which memory is asked for
constexpr std::int64_t kAhead = 2048;     // packed numbers of a between those that are used and asked for
constexpr std::int64_t kRowsBefore = 96;  // during whose tiles the next panel of b is asked for
constexpr std::int64_t kTile = kPairRows * kPairColumns;
constexpr std::int64_t kRowUnit = 2;  // the last rows are a tile of a multiple of it

// -- numbers
// -------------------------------------------------------------------------------------------------

__m512 load(const Numbers& from, std::int64_t at, __mmask16 lanes) {
  if (from.is_float32) return _mm512_maskz_loadu_ps(lanes, static_cast<const float*>(from.data) + at);
  const __m256i bits = _mm256_maskz_loadu_epi16(lanes, static_cast<const Bits*>(from.data) + at);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

template <bool kFloat32>
void store(void* to, std::int64_t at, __mmask16 lanes, __m512 x) {
  if constexpr (kFloat32) {
    float* const place = static_cast<float*>(to) + at;
    if (lanes == 0xffff) return _mm512_storeu_ps(place, x);
    _mm512_mask_storeu_ps(place, lanes, x);
  } else {
    Bits* const place = static_cast<Bits*>(to) + at;
    const __m256i bits = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
    if (lanes == 0xffff) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(place), bits);
    _mm256_mask_storeu_epi16(place, lanes, bits);
  }
}

const char* address(const Numbers& numbers, std::int64_t at) {
  return static_cast<const char*>(numbers.data) + at * (numbers.is_float32 ? 4 : 2);
}

// Pairs of 16 numbers each of two lines.
inline __m512i interleaved(const Bits* line, const Bits* next, __mmask16 lanes, __mmask16 next_lanes) {
  const __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, line));
  const __m512i second = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(next_lanes, next));
  return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}

inline __m512i splat_pair(const Bits* from) {
  int pair;
  std::memcpy(&pair, from, sizeof(pair));
  return _mm512_set1_epi32(pair);
}

inline __m512 add_products(__m512 sum, __m512i x, __m512i w) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
}

// -- tiles
// ---------------------------------------------------------------------------------------------------

// Rows of a for a tile: where they lie, `row` numbers apart, or packed pair by pair for kPairRows rows.
struct Rows {
  const Bits* data;
  std::int64_t row, count;
};

// What is needed soon: a tile of c, operands that are packed next.
struct Soon {
  const char* c;
  std::int64_t c_row, c_bytes;
  Ahead (&operands)[2];
};

// Writes the sums of a tile's first kRows rows, or adds to them.
template <bool kPacked, int kRows>
void tile(std::int64_t depth, const Rows& a, const Bits* b, float* sums, bool adds, const Soon& soon) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const Bits* rows[kRows] = {a.data};
#pragma GCC unroll 8
  for (int r = 1; r < kRows; ++r) rows[r] = rows[r - 1] + (r < a.count ? a.row : 0);  // the last one again
  const Bits* packed = a.data;
  std::int64_t done = 0;  // depths
  const auto number = [&](int r, int k) __attribute__((always_inline)) {
    return kPacked ? packed + (k * kPairRows + r) * 2 : rows[r] + done + 2 * k;
  };
  const auto step = [&](int k, auto pair) __attribute__((always_inline)) {
    __m512i w[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) w[v] = _mm512_load_si512(b + (k * kPairColumns + v * kLanes) * 2);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512i x = pair(number(r, k));
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sum[r][v] = add_products(sum[r][v], x, w[v]);
    }
  };
  const auto go_on = [&](std::int64_t pairs) __attribute__((always_inline)) {
    done += 2 * pairs;
    packed += 2 * pairs * kPairRows;
    b += 2 * pairs * kPairColumns;
  };
  const char* c = soon.c;
  std::int64_t c_rows = c ? kRows : 0;
  const bool asks = !soon.operands[0].is_done() || !soon.operands[1].is_done();
  while (done + 2 * kPause <= depth) {
    const std::int64_t next = kPacked ? kAhead : kPairRows * a.row;
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Bits* line = kPacked ? packed + r * 2 * kPause : rows[r] + done;
      _mm_prefetch(reinterpret_cast<const char*>(line + next), _MM_HINT_T1);
    }
    if (asks) {
      for (Ahead& operand : soon.operands) operand.fetch();
    }
    if (c_rows > 0) {
      const std::int64_t places[] = {0, soon.c_bytes / 2, soon.c_bytes - 1};  // in all of its lines
      for (const std::int64_t place : places) __builtin_prefetch(c + place, 1, 3);
      c += soon.c_row;
      --c_rows;
    }
#pragma GCC unroll 16
    for (int k = 0; k < kPause; ++k) step(k, splat_pair);
    go_on(kPause);
  }
  for (; done + 2 <= depth; go_on(1)) step(0, splat_pair);
  if (done < depth) {
    step(0, [](const Bits* from) __attribute__((always_inline)) {
      return kPacked ? splat_pair(from) : _mm512_set1_epi32(*from);
    });
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      float* const to = sums + r * kPairColumns + v * kLanes;
      _mm512_store_ps(to, adds ? _mm512_add_ps(_mm512_load_ps(to), sum[r][v]) : sum[r][v]);
    }
  }
}

using TileFn = void (*)(std::int64_t, const Rows&, const Bits*, float*, bool, const Soon&);

template <bool kPacked>
constexpr TileFn kTiles[] = {tile<kPacked, 2>, tile<kPacked, 4>, tile<kPacked, 6>, tile<kPacked, 8>};
static_assert(std::size(kTiles<true>) * kRowUnit == kPairRows);

// -- one problem
// ---------------------------------------------------------------------------------------------

// A panel of columns from n on, for the rows of a block from m on, from depth k on.
struct Place {
  std::int64_t m, n, k;
};

class Multiplication {
 public:
  Multiplication(const Problem& problem, const PairOperands& operands, char* scratch)
      : p_(problem),
        o_(operands),
        blocks_(problem),
        b_packed_(reinterpret_cast<Bits*>(scratch)),
        a_packed_(reinterpret_cast<Bits*>(scratch + blocks_.b_bytes)),
        sums_(reinterpret_cast<float*>(scratch + blocks_.b_bytes + blocks_.a_bytes)) {}

  void run() {
    for (Place at{0, 0, 0}; at.m < p_.rows; at = after(at)) panel(at);
  }

 private:
  Place after(Place at) const {
    at.k += blocks_.depth;
    if (at.k < p_.depth) return at;
    at.k = 0;
    at.n += kPairColumns;
    if (at.n < p_.columns) return at;
    at.n = 0;
    at.m += blocks_.rows;
    return at;
  }

  bool packs_a() const { return p_.a_column != 1; }
  std::int64_t rows_at(std::int64_t m) const { return smaller(blocks_.rows, p_.rows - m); }
  std::int64_t depth_at(std::int64_t k) const { return smaller(blocks_.depth, p_.depth - k); }
  std::int64_t columns_at(std::int64_t n) const { return smaller(kPairColumns, p_.columns - n); }
  std::int64_t pauses(std::int64_t rows, std::int64_t depth) const {
    return rows / kPairRows * (depth / (2 * kPause)) + 1;
  }
  // Packed rows of a: a tile for kPairRows of them.
  Bits* a_packed(std::int64_t row, std::int64_t k) const {
    const std::int64_t even_depth = (depth_at(k) + 1) / 2 * 2;
    return a_packed_ + k * blocks_.rows + row * even_depth;
  }

  void panel(const Place& at) {
    const std::int64_t rows = rows_at(at.m);
    const bool packs = packs_a() && at.n == 0;
    pack_b(at);
    soon_[0].clear();
    soon_[1].clear();
    bool is_late = false;
    for (std::int64_t i = 0; i < rows; i += kPairRowsTogether) {
      if (!is_late && i + kRowsBefore >= rows) {
        is_late = true;
        ask_for_b(after(at), rows - i, depth_at(at.k));
      }
      if (packs) {
        pack_a(at, i, rows);
        ask_for_a(at, i + kPairRowsTogether, rows);
      }
      const std::int64_t last = smaller(i + kPairRowsTogether, rows);
      for (std::int64_t row = i; row < last; row += kPairRows)
        one_tile(at, row, smaller(kPairRows, rows - row));
    }
  }

  void one_tile(const Place& at, std::int64_t row, std::int64_t rows) {
    alignas(64) float own[kTile];
    const bool is_first = at.k == 0, is_last = at.k + blocks_.depth >= p_.depth;
    float* const sums = is_first && is_last ? own : sums_ + row * kPairColumns;
    const std::int64_t to = (at.m + row) * p_.c_row + at.n;
    const std::int64_t size = o_.c.is_float32 ? 4 : 2;
    const Soon soon{is_last ? address(o_.c, to) : nullptr, p_.c_row * size, columns_at(at.n) * size, soon_};
    const std::int64_t units = (rows + kRowUnit - 1) / kRowUnit;
    if (packs_a()) {
      kTiles<true>[units - 1](depth_at(at.k), {a_packed(row, at.k), 0, rows}, b_packed_, sums, !is_first,
                              soon);
    } else {
      const Rows a{o_.a + (at.m + row) * p_.a_row + at.k, p_.a_row, rows};
      kTiles<false>[units - 1](depth_at(at.k), a, b_packed_, sums, !is_first, soon);
    }
    if (is_last) finish(at.n, sums, to, rows);
  }

  // Sums become or change what c holds from `to` on.
  void finish(std::int64_t n, const float* sums, std::int64_t to, std::int64_t rows) const {
    const bool is_plain =
        !p_.accumulates && !o_.residual.data && !o_.factor.data && p_.epilogue.activation == Activation::None;
    if (is_plain) {
      const auto same = [](__m512 value, std::int64_t, __mmask16) { return value; };
      return o_.c.is_float32 ? finish<true>(n, sums, to, rows, same) : finish<false>(n, sums, to, rows, same);
    }
    const auto changed = [this](__m512 value, std::int64_t at, __mmask16 lanes) {
      if (p_.accumulates) value = _mm512_add_ps(load(o_.c, at, lanes), value);
      if (o_.residual.data) value = _mm512_add_ps(value, load(o_.residual, at, lanes));
      if (o_.factor.data) value = _mm512_mul_ps(value, load(o_.factor, at, lanes));
      return activate(p_.epilogue, value);
    };
    return o_.c.is_float32 ? finish<true>(n, sums, to, rows, changed)
                           : finish<false>(n, sums, to, rows, changed);
  }

  template <bool kFloat32, class Change>
  void finish(std::int64_t n, const float* sums, std::int64_t to, std::int64_t rows, Change change) const {
    const std::int64_t columns = columns_at(n);
    for (std::int64_t v = 0; v < columns; v += kLanes) {
      const __mmask16 lanes = first_lanes(columns - v);
      const __m512 bias = o_.bias.data ? load(o_.bias, n + v, lanes) : splat(-0.0f);  // which changes nothing
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t at = to + r * p_.c_row + v;
        const __m512 sum = _mm512_add_ps(_mm512_load_ps(sums + r * kPairColumns + v), bias);
        store<kFloat32>(o_.c.data, at, lanes, change(sum, at, lanes));
      }
    }
  }

  // -- packing: what lies outside of an operand counts as zero --

  // Rows of a, of those up to the last, while products of as many are made.
  void ask_for_a(const Place& at, std::int64_t row, std::int64_t last) {
    soon_[1].clear();
    const std::int64_t depth = depth_at(at.k);
    soon_[1].add(o_.a + at.m + row + at.k * p_.a_column, depth, smaller(kPairRowsTogether, last - row),
                 p_.a_column);
    soon_[1].spread(pauses(kPairRowsTogether, depth));
  }

  // The panel of b at a place, while products of so many rows and depths are made.
  void ask_for_b(const Place& at, std::int64_t rows, std::int64_t depth) {
    soon_[0].clear();
    if (at.m >= p_.rows) return;
    const Bits* from = o_.b + at.k * p_.b_row + at.n * p_.b_column;
    if (p_.b_column == 1) {
      soon_[0].add(from, depth_at(at.k), columns_at(at.n), p_.b_row);
    } else {
      soon_[0].add(from, columns_at(at.n), depth_at(at.k), p_.b_column);
    }
    soon_[0].spread(pauses(rows, depth));
  }

  void pack_a(const Place& at, std::int64_t row, std::int64_t last) const {
    const std::int64_t depth = depth_at(at.k);
    const Bits* from = o_.a + at.m + row + at.k * p_.a_column;
    for (std::int64_t d = 0; d < depth; d += 2) {
      const Bits* line = from + d * p_.a_column;
      for (std::int64_t r = 0; r < smaller(kPairRowsTogether, last - row); r += kLanes) {
        const __mmask16 lanes = first_lanes(last - row - r);
        const __m512i x = interleaved(line + r, line + p_.a_column + r, lanes, d + 1 < depth ? lanes : 0);
        Bits* const to = a_packed(row + r, at.k) + d * kPairRows;
        Bits* const other = a_packed(row + r + kPairRows, at.k) + d * kPairRows;
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(x));
        _mm256_store_si256(reinterpret_cast<__m256i*>(other), _mm512_extracti64x4_epi64(x, 1));
      }
    }
  }

  void pack_b(const Place& at) const {
    const Bits* from = o_.b + at.k * p_.b_row + at.n * p_.b_column;
    const std::int64_t depth = depth_at(at.k);
    for (std::int64_t v = 0; v < kPairColumns; v += kLanes) {
      Bits* const to = b_packed_ + v * 2;
      const std::int64_t columns = smaller(kLanes, columns_at(at.n) - v);
      if (p_.b_column == 1) {
        pack_lines(from + v, columns, depth, to);
      } else {
        pack_columns(from + v * p_.b_column, columns, depth, to);
      }
    }
  }

  // Of 16 columns of a panel, whose rows lie in memory one by one.
  void pack_lines(const Bits* from, std::int64_t columns, std::int64_t depth, Bits* to) const {
    const __mmask16 lanes = first_lanes(columns);
    for (std::int64_t d = 0; d < depth; d += 2) {
      const Bits* line = from + d * p_.b_row;
      _mm512_store_si512(to + d * kPairColumns,
                         interleaved(line, line + p_.b_row, lanes, d + 1 < depth ? lanes : 0));
    }
  }

  // Likewise where the columns do.
  void pack_columns(const Bits* from, std::int64_t columns, std::int64_t depth, Bits* to) const {
    for (std::int64_t d = 0; d < depth; d += kPairStep) {
      const __mmask32 numbers = depth - d >= kPairStep ? 0xffffffffu : (1u << (depth - d)) - 1u;
      __m512 pairs[kLanes];
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kLanes; ++i) {
        const Bits* column = from + i * p_.b_column + d;
        pairs[i] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(i < columns ? numbers : 0, column));
      }
      transpose(pairs);
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kLanes; ++i) _mm512_store_ps(to + (d + 2 * i) * kPairColumns, pairs[i]);
    }
  }

  const Problem& p_;
  const PairOperands& o_;
  const PairBlocks blocks_;
  Bits* const b_packed_;
  Bits* const a_packed_;
  float* const sums_;
  Ahead soon_[2];  // operands that are packed next: b, a
};

}  // namespace

void multiply_pairs_avx512(const Problem& problem, const PairOperands& operands, void* scratch) {
  if (problem.rows > 0 && problem.columns > 0) {
    Multiplication(problem, operands, static_cast<char*>(scratch)).run();
  }
}

}  // namespace npu::product
