// Strassen products for AVX-512.
#include <immintrin.h>

#include "product/avx512.h"
#include "product/product.h"

namespace npu::product {
namespace {

constexpr std::int64_t kAhead = 8;  // depths of a that are on their way while one is packed
constexpr int kVectors = 3;         // of a tile's row
constexpr std::int64_t kStep = 16;  // depths of b that are packed at once

// -- what is multiplied, and where it goes
// -------------------------------------------------------------------

// Quarters of a matrix: 0 1 above 2 3. The first products that reach a quarter of c write it, the others
// change it.
enum class Update : std::uint8_t { Write, Add, Subtract };

struct Destination {
  int quarter;
  Update update;
  bool last;  // no later product of these depths reaches the quarter
};

struct Product {
  int a, b;  // which of the packed sums are multiplied
  Destination to[2];
  int count;
};

struct Schedule {
  const Product* products;
  int count;
};

// The sums of quarters are those that `sums_of_a` and `sums_of_b` form, in this order.
constexpr Product kSevenProducts[] = {
    {0, 0, {{0, Update::Write, false}, {3, Update::Write, false}}, 2},     // (a0 + a3) (b0 + b3)
    {1, 1, {{2, Update::Write, false}, {3, Update::Subtract, false}}, 2},  // (a2 + a3) b0
    {2, 2, {{1, Update::Write, false}, {3, Update::Add, false}}, 2},       // a0 (b1 - b3)
    {3, 3, {{2, Update::Add, true}, {0, Update::Add, false}}, 2},          // a3 (b2 - b0)
    {4, 4, {{1, Update::Add, true}, {0, Update::Subtract, false}}, 2},     // (a0 + a1) b3
    {5, 5, {{3, Update::Add, true}, {}}, 1},                               // (a2 - a0) (b0 + b1)
    {6, 6, {{0, Update::Add, true}, {}}, 1},                               // (a1 - a3) (b2 + b3)
};

// The textbook's products of the quarters themselves.
constexpr Product kEightProducts[] = {
    {0, 0, {{0, Update::Write, false}, {}}, 1}, {1, 2, {{0, Update::Add, true}, {}}, 1},
    {0, 1, {{1, Update::Write, false}, {}}, 1}, {1, 3, {{1, Update::Add, true}, {}}, 1},
    {2, 0, {{2, Update::Write, false}, {}}, 1}, {3, 2, {{2, Update::Add, true}, {}}, 1},
    {2, 1, {{3, Update::Write, false}, {}}, 1}, {3, 3, {{3, Update::Add, true}, {}}, 1},
};

constexpr Schedule kStrassen{kSevenProducts, 7};
constexpr Schedule kPlain{kEightProducts, 8};

struct Sums {
  __m512 of[kProducts];
};

inline Sums quarters_themselves(const __m512 (&x)[4]) { return {{x[0], x[1], x[2], x[3]}}; }

inline Sums sums_of_a(const __m512 (&x)[4]) {
  const auto [a0, a1, a2, a3] = x;
  return {{_mm512_add_ps(a0, a3), _mm512_add_ps(a2, a3), a0, a3, _mm512_add_ps(a0, a1), _mm512_sub_ps(a2, a0),
           _mm512_sub_ps(a1, a3)}};
}

inline Sums sums_of_b(const __m512 (&x)[4]) {
  const auto [b0, b1, b2, b3] = x;
  return {{_mm512_add_ps(b0, b3), b0, _mm512_sub_ps(b1, b3), _mm512_sub_ps(b2, b0), b3, _mm512_add_ps(b0, b1),
           _mm512_add_ps(b2, b3)}};
}

// -- tiles
// ---------------------------------------------------------------------------------------------------

// A tile of c. Sums are of scaled rows and columns; these are the powers of two that they lack.
struct Target {
  float* c;
  Update update;
  const float* row_exponents;
  const float* column_exponents;

  __m512 unscaled(__m512 sum, std::int64_t row, std::int64_t column) const {
    const __m512 exponents = _mm512_loadu_ps(column_exponents + column);
    return _mm512_scalef_ps(sum, _mm512_add_ps(splat(row_exponents[row]), exponents));
  }
};

template <Update kUpdate>
inline void update_tile(const __m512 (&sum)[kTileRows][kVectors], const Target& target, std::int64_t row) {
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      float* at = target.c + r * row + v * kLanes;
      __m512 value = target.unscaled(sum[r][v], r, v * kLanes);
      if constexpr (kUpdate == Update::Add) value = _mm512_add_ps(_mm512_loadu_ps(at), value);
      if constexpr (kUpdate == Update::Subtract) value = _mm512_sub_ps(_mm512_loadu_ps(at), value);
      _mm512_storeu_ps(at, value);
    }
  }
}

// The sums of a are packed row by row (kByRows: `a_row` floats apart), or depth by depth for the rows of a
// tile.
template <bool kByRows>
void tile(std::int64_t depth, const float* a, std::int64_t a_row, const float* b, const Target* targets,
          int count, std::int64_t c_row) {
  __m512 sum[kTileRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const auto step = [&](int k) __attribute__((always_inline)) {
    __m512 w[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) w[v] = _mm512_loadu_ps(b + k * kTileColumns + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const __m512 x = splat(kByRows ? a[r * a_row + k] : a[k * kTileRows + r]);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(x, w[v], sum[r][v]);
    }
  };
  const auto sum_fours = [&](std::int64_t fours) __attribute__((always_inline)) {
    for (std::int64_t i = 0; i < fours; ++i) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) step(k);
      a += kByRows ? 4 : 4 * kTileRows;
      b += 4 * kTileColumns;
    }
  };
  // The lines of c come while the second half of the depths is summed, a row at a time: all at once they
  // would hold up a and b, and earlier these would drive them out again.
  const std::int64_t rows = count * kTileRows, fours = depth / 4, each = fours / 2 / rows;
  sum_fours(fours - each * rows);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* line = targets[r / kTileRows].c + r % kTileRows * c_row;
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(line + v * kLanes, 1, 3);
    sum_fours(each);
  }
  for (std::int64_t k = fours * 4; k < depth; ++k) {
    step(0);
    a += kByRows ? 1 : kTileRows;
    b += kTileColumns;
  }
  for (int t = 0; t < count; ++t) {
    switch (targets[t].update) {
      case Update::Write:
        update_tile<Update::Write>(sum, targets[t], c_row);
        break;
      case Update::Add:
        update_tile<Update::Add>(sum, targets[t], c_row);
        break;
      case Update::Subtract:
        update_tile<Update::Subtract>(sum, targets[t], c_row);
        break;
    }
  }
}

// A tile of sums into a part of c that is smaller than a tile.
void update_edge(const float* sums, const Target& target, std::int64_t rows, std::int64_t columns,
                 std::int64_t c_row) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t v = 0; v < columns; v += kLanes) {
      const __mmask16 lanes = first_lanes(columns - v);
      float* at = target.c + r * c_row + v;
      __m512 value = target.unscaled(_mm512_loadu_ps(sums + r * kTileColumns + v), r, v);
      if (target.update == Update::Add) value = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, at), value);
      if (target.update == Update::Subtract) value = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, at), value);
      _mm512_mask_storeu_ps(at, lanes, value);
    }
  }
}

// -- sizes of rows and columns
// -------------------------------------------------------------------------------

inline __m512i magnitudes(__m512i numbers) {
  return _mm512_and_si512(numbers, _mm512_set1_epi32(0x7fffffff));
}

// The largest magnitude of each line, as the bits of a float: they are ordered like the numbers, NaN last.
// Numbers of a line lie side by side.
void measure_along(const float* data, std::int64_t lines, std::int64_t length, std::int64_t line,
                   std::uint32_t* most) {
  constexpr int kTogether = 4;
  for (std::int64_t i = 0; i < lines; ++i) {
    const float* from = data + i * line;
    __m512i largest[kTogether] = {};
    std::int64_t k = 0;
    for (; k + kTogether * kLanes <= length; k += kTogether * kLanes) {
#pragma GCC unroll 4
      for (int j = 0; j < kTogether; ++j) {
        const __m512i numbers = _mm512_loadu_si512(from + k + j * kLanes);
        largest[j] = _mm512_max_epu32(largest[j], magnitudes(numbers));
      }
    }
    for (; k < length; k += kLanes) {
      const __m512i numbers = _mm512_maskz_loadu_epi32(first_lanes(length - k), from + k);
      largest[0] = _mm512_max_epu32(largest[0], magnitudes(numbers));
    }
    largest[0] = _mm512_max_epu32(largest[0], largest[1]);
    largest[2] = _mm512_max_epu32(largest[2], largest[3]);
    most[i] = _mm512_reduce_max_epu32(_mm512_max_epu32(largest[0], largest[2]));
  }
}

// Likewise where it is the lines that lie side by side. `most` starts as zeros.
void measure_across(const float* data, std::int64_t lines, std::int64_t length, std::int64_t step,
                    std::uint32_t* most) {
  constexpr int kTogether = 4;
  for (std::int64_t k = 0; k < length; k += kTogether) {
    const float* from[kTogether];
    for (int j = 0; j < kTogether; ++j) from[j] = data + smaller(k + j, length - 1) * step;
    const auto measure = [&](std::int64_t i, __mmask16 lanes) __attribute__((always_inline)) {
      __m512i largest = _mm512_loadu_si512(most + i);
#pragma GCC unroll 4
      for (int j = 0; j < kTogether; ++j) {
        largest = _mm512_max_epu32(largest, magnitudes(_mm512_maskz_loadu_epi32(lanes, from[j] + i)));
      }
      _mm512_storeu_si512(most + i, largest);
    };
    std::int64_t i = 0;
    for (; i + kLanes <= lines; i += kLanes) measure(i, 0xffff);
    if (i < lines) measure(i, first_lanes(lines - i));
  }
}

constexpr int kBias = 127;       // of an exponent in a float's bits
constexpr int kNotFinite = 128;  // the exponent of infinities and NaN
constexpr int kMantissa = 23;    // bits

// Powers of two for the rows of a, or the columns of b. A line is added to that of the other half: scaled by
// their factors, their largest numbers are about 1 and alike, so that the sum is as exact as each of them.
struct Scales {
  float* factors;
  float* exponents;  // what a line was divided by
  std::int64_t half;

  std::int64_t lines() const { return 2 * half; }

  // Measures lines and returns the largest exponent.
  int choose(const float* data, std::int64_t count, std::int64_t length, std::int64_t line,
             std::int64_t step) const {
    auto* most = reinterpret_cast<std::uint32_t*>(exponents);
    for (std::int64_t i = 0; i < lines(); i += kLanes) _mm512_storeu_si512(most + i, _mm512_setzero_si512());
    if (step == 1) {
      measure_along(data, count, length, line, most);
    } else {
      measure_across(data, count, length, step, most);
    }
    __m256i largest = _mm256_setzero_si256();
    for (std::int64_t i = 0; i < half; i += 8) {
      const __m256i one = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(most + i));
      const __m256i other = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(most + half + i));
      largest = _mm256_max_epu32(largest, _mm256_max_epu32(one, other));
      // The exponent of the quotient of both, to the nearest, is that of the factors.
      const __m256i mantissa = _mm256_and_si256(one, _mm256_set1_epi32((1 << kMantissa) - 1));
      const __m256i rest = _mm256_sub_epi32(_mm256_set1_epi32(1 << (kMantissa - 1)), mantissa);
      set(i, one, one);
      set(half + i, other, _mm256_add_epi32(other, rest));
    }
    const __m512i all = _mm512_zextsi256_si512(largest);
    return static_cast<int>(_mm512_reduce_max_epu32(all) >> kMantissa) - kBias;
  }

  void clear() const {
    for (std::int64_t i = 0; i < lines(); i += kLanes) {
      _mm512_storeu_ps(factors + i, splat(1.0f));
      _mm512_storeu_ps(exponents + i, _mm512_setzero_ps());
    }
  }

 private:
  // The scale of eight lines by the bits of a number of like size.
  void set(std::int64_t at, __m256i most, __m256i like) const {
    // Within what normal numbers can undo.
    const __m256i least = _mm256_set1_epi32(1), last = _mm256_set1_epi32(2 * kBias - 1);
    const __m256i biased =
        _mm256_max_epi32(least, _mm256_min_epi32(last, _mm256_srai_epi32(like, kMantissa)));
    const __m256i reciprocal = _mm256_sub_epi32(_mm256_set1_epi32(2 * kBias), biased);
    _mm256_storeu_ps(factors + at, _mm256_castsi256_ps(_mm256_slli_epi32(reciprocal, kMantissa)));
    // Whatever rounding leaves in a line of zeros becomes zero.
    const __m256 power = _mm256_cvtepi32_ps(_mm256_sub_epi32(biased, _mm256_set1_epi32(kBias)));
    const __mmask8 zeros = _mm256_testn_epi32_mask(most, most);
    _mm256_storeu_ps(exponents + at, _mm256_mask_mov_ps(power, zeros, _mm256_set1_ps(-1000.0f)));
  }
};

// -- one problem
// ---------------------------------------------------------------------------------------------

constexpr float kUnscaled[kTileColumns] = {};  // exponents

struct Part {
  const float* data;
  std::int64_t rows, depths;  // or depths and columns of b
};

class Multiplication {
 public:
  Multiplication(const Problem& problem, const Operands& operands, float* scratch)
      : p_(problem),
        o_(operands),
        blocks_(problem),
        a_sums_(scratch),
        b_sums_(scratch + blocks_.a_floats()),
        rows_{b_sums_ + blocks_.b_floats(), rows_.factors + blocks_.row_scales(), blocks_.half_rows},
        columns_{rows_.exponents + blocks_.row_scales(), columns_.factors + blocks_.column_scales(),
                 blocks_.half_columns} {}

  void run() {
    choose_schedule();
    for (std::int64_t k = 0; k < blocks_.half_depth; k += blocks_.depth) {
      for (std::int64_t n = 0; n < blocks_.half_columns; n += blocks_.columns) block(k, n);
    }
  }

 private:
  // Sums of quarters would carry what is not finite, or what overflows only within them, to other rows and
  // columns.
  void choose_schedule() {
    const int a = rows_.choose(o_.a, p_.rows, p_.depth, p_.a_row, p_.a_column);
    const int b = columns_.choose(o_.b, p_.columns, p_.depth, p_.b_column, p_.b_row);
    // A product of sums is below 2^(a + b + 4) times half the depth, and up to four of them are added.
    const int growth = 6 + 64 - __builtin_clzll(static_cast<unsigned long long>(p_.depth));
    is_plain_ = a >= kNotFinite || b >= kNotFinite || a + b + growth >= kNotFinite;
    if (!is_plain_) return;
    rows_.clear();
    columns_.clear();
  }

  const Schedule& schedule() const { return is_plain_ ? kPlain : kStrassen; }

  bool by_rows() const { return p_.a_column == 1; }
  std::int64_t a_row() const { return (blocks_.depth + kLanes - 1) / kLanes * kLanes; }
  float* b_sums(std::int64_t panel, int product) const {
    return b_sums_ + (panel * kProducts + product) * blocks_.b_sum;
  }

  // Depths from k on times columns from n on, of each half.
  void block(std::int64_t k, std::int64_t n) {
    const std::int64_t depth = smaller(blocks_.depth, blocks_.half_depth - k);
    const std::int64_t panels = smaller(blocks_.columns, blocks_.half_columns - n) / kTileColumns;
    for (std::int64_t m = 0; m < blocks_.half_rows; m += blocks_.rows) {
      const std::int64_t rows = smaller(blocks_.rows, blocks_.half_rows - m);
      if (by_rows()) {
        pack_rows(m, rows, k, depth);
      } else {
        pack_columns(m, rows, k, depth);
      }
      for (std::int64_t j = 0; j < panels; ++j) {
        const std::int64_t column = n + j * kTileColumns;
        if (m == 0) pack_panel(j, column, k, depth);
        for (int i = 0; i < schedule().count; ++i) {
          tiles(schedule().products[i], m, rows, j, column, k, depth);
        }
      }
    }
  }

  // The tiles of one product in some rows of a panel.
  void tiles(const Product& product, std::int64_t m, std::int64_t rows, std::int64_t panel,
             std::int64_t column, std::int64_t k, std::int64_t depth) {
    const bool first = k == 0 && !p_.accumulates, last = k + depth == blocks_.half_depth;
    Target targets[2] = {};
    std::int64_t rows_left[2] = {}, columns_left[2] = {}, columns_at[2] = {};
    for (int t = 0; t < product.count; ++t) {
      const Destination& to = product.to[t];
      const std::int64_t row = (to.quarter & 2 ? blocks_.half_rows : 0) + m;
      columns_at[t] = (to.quarter & 1 ? blocks_.half_columns : 0) + column;
      rows_left[t] = (to.quarter & 2 ? p_.rows : smaller(blocks_.half_rows, p_.rows)) - row;
      columns_left[t] =
          (to.quarter & 1 ? p_.columns : smaller(blocks_.half_columns, p_.columns)) - columns_at[t];
      targets[t] = {o_.c + row * p_.c_row + columns_at[t],
                    to.update == Update::Write && !first ? Update::Add : to.update, rows_.exponents + row,
                    columns_.exponents + columns_at[t]};
    }
    const float* a = a_sums_ + product.a * blocks_.a_sum;
    const float* b = b_sums(panel, product.b);
    for (std::int64_t i = 0; i < rows; i += kTileRows, a += kTileRows * a_row()) {
      bool whole = true;
      for (int t = 0; t < product.count; ++t) {
        whole = whole && rows_left[t] >= kTileRows && columns_left[t] >= kTileColumns;
      }
      if (whole) {
        multiply(depth, a, b, targets, product.count, p_.c_row);
      } else {
        alignas(64) float sums[kTileRows * kTileColumns];
        const Target aside{sums, Update::Write, kUnscaled, kUnscaled};
        multiply(depth, a, b, &aside, 1, kTileColumns);
        for (int t = 0; t < product.count; ++t) {
          update_edge(sums, targets[t], smaller(rows_left[t], kTileRows),
                      smaller(columns_left[t], kTileColumns), p_.c_row);
        }
      }
      for (int t = 0; t < product.count; ++t) {
        if (last && product.to[t].last && !p_.epilogue.is_empty()) {
          finish(targets[t].c, columns_at[t], smaller(rows_left[t], kTileRows),
                 smaller(columns_left[t], kTileColumns));
        }
        targets[t].c += kTileRows * p_.c_row;
        targets[t].row_exponents += kTileRows;
        rows_left[t] -= kTileRows;
      }
    }
  }

  void multiply(std::int64_t depth, const float* a, const float* b, const Target* targets, int count,
                std::int64_t c_row) const {
    if (by_rows()) {
      tile<true>(depth, a, a_row(), b, targets, count, c_row);
    } else {
      tile<false>(depth, a, 0, b, targets, count, c_row);
    }
  }

  // A tile of c, whose sums are complete and still in the first-level cache.
  void finish(float* c, std::int64_t column, std::int64_t rows, std::int64_t columns) const {
    const float* residual = o_.residual ? o_.residual + (c - o_.c) : nullptr;
    const float* factor = o_.factor ? o_.factor + (c - o_.c) : nullptr;
    for (std::int64_t v = 0; v < columns; v += kLanes) {
      const __mmask16 lanes = first_lanes(columns - v);
      const __m512 bias = o_.bias ? _mm512_maskz_loadu_ps(lanes, o_.bias + column + v) : _mm512_setzero_ps();
      for (std::int64_t r = 0; r < rows; ++r) {
        float* at = c + r * p_.c_row + v;
        __m512 value = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, at), bias);
        if (residual) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, residual + r * p_.c_row + v));
        if (factor) value = _mm512_mul_ps(value, _mm512_maskz_loadu_ps(lanes, factor + r * p_.c_row + v));
        value = activate(p_.epilogue, value);
        if (lanes == 0xffff) {
          _mm512_storeu_ps(at, value);  // a masked store takes several times as long
        } else {
          _mm512_mask_storeu_ps(at, lanes, value);
        }
      }
    }
  }

  // -- packing: what lies outside of an operand counts as zero --

  // Rows from m on and depths from k on in each quarter of a.
  void quarters_of_a(std::int64_t m, std::int64_t k, std::int64_t depth, Part (&parts)[4]) const {
    for (int q = 0; q < 4; ++q) {
      const std::int64_t row = (q & 2 ? blocks_.half_rows : 0) + m, at = (q & 1 ? blocks_.half_depth : 0) + k;
      const std::int64_t last_row = q & 2 ? p_.rows : smaller(blocks_.half_rows, p_.rows);
      parts[q] = {o_.a + row * p_.a_row + at * p_.a_column, last_row - row,
                  smaller((q & 1 ? p_.depth : blocks_.half_depth) - at, depth)};
    }
  }

  void pack_rows(std::int64_t m, std::int64_t rows, std::int64_t k, std::int64_t depth) const {
    Part parts[4];
    quarters_of_a(m, k, depth, parts);
    for (std::int64_t i = 0; i < rows; ++i) {
      float* to = a_sums_ + i * a_row();
      std::int64_t length[4], shared = depth;
      for (int q = 0; q < 4; ++q) {
        length[q] = i < parts[q].rows ? parts[q].depths : 0;
        shared = smaller(shared, length[q]);
      }
      const __m512 factors[2] = {splat(rows_.factors[m + i]),
                                 splat(rows_.factors[blocks_.half_rows + m + i])};
      const auto at = [&](int q, std::int64_t d) { return parts[q].data + i * p_.a_row + d; };
      for (std::int64_t d = 0; d < depth; d += kLanes) {
        __m512 x[4];
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
          x[q] = d + kLanes <= shared ? _mm512_loadu_ps(at(q, d))
                                      : _mm512_maskz_loadu_ps(first_lanes(length[q] - d), at(q, d));
          x[q] = _mm512_mul_ps(x[q], factors[q / 2]);
        }
        const Sums sums = is_plain_ ? quarters_themselves(x) : sums_of_a(x);
#pragma GCC unroll 7
        for (int s = 0; s < kProducts; ++s) _mm512_storeu_ps(to + s * blocks_.a_sum + d, sums.of[s]);
      }
    }
  }

  void pack_columns(std::int64_t m, std::int64_t rows, std::int64_t k, std::int64_t depth) const {
    Part parts[4];
    quarters_of_a(m, k, depth, parts);
    const std::int64_t panel = kTileRows * a_row();
    for (std::int64_t d = 0; d < depth; ++d) {
      for (std::int64_t i = 0; i < rows; i += kLanes) {
        __m512 x[4];
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
          _mm_prefetch(parts[q].data + (d + kAhead) * p_.a_column + i, _MM_HINT_T0);
          const __mmask16 lanes = d < parts[q].depths ? first_lanes(parts[q].rows - i) : 0;
          const __m512 factors = _mm512_loadu_ps(rows_.factors + (q & 2 ? blocks_.half_rows : 0) + m + i);
          x[q] = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, parts[q].data + d * p_.a_column + i), factors);
        }
        const Sums sums = is_plain_ ? quarters_themselves(x) : sums_of_a(x);
        float* to = a_sums_ + i / kTileRows * panel + d * kTileRows;
#pragma GCC unroll 7
        for (int s = 0; s < kProducts; ++s) {
          _mm256_storeu_ps(to + s * blocks_.a_sum, _mm512_castps512_ps256(sums.of[s]));
          if (i + kTileRows < rows) {
            _mm256_storeu_ps(to + s * blocks_.a_sum + panel, _mm512_extractf32x8_ps(sums.of[s], 1));
          }
        }
      }
    }
  }

  struct Block {
    const float* data;
    std::int64_t row;
  };

  // Some depths of a panel of b, either where they lie or brought together in `aside`.
  Block depths_of_b(int quarter, std::int64_t column, std::int64_t k, std::int64_t count,
                    float* aside) const {
    const std::int64_t at = (quarter & 2 ? blocks_.half_depth : 0) + k;
    const std::int64_t first = (quarter & 1 ? blocks_.half_columns : 0) + column;
    const std::int64_t last = quarter & 1 ? p_.columns : smaller(blocks_.half_columns, p_.columns);
    const std::int64_t depths = smaller((quarter & 2 ? p_.depth : blocks_.half_depth) - at, count);
    const std::int64_t columns = smaller(last - first, kTileColumns);
    const float* from = o_.b + at * p_.b_row + first * p_.b_column;
    if (p_.b_column == 1 && depths == count && columns == kTileColumns) return {from, p_.b_row};
    for (std::int64_t v = 0; v < kTileColumns; v += kLanes) {
      __m512 lines[kStep];
      if (p_.b_column == 1) {
        for (std::int64_t i = 0; i < kStep; ++i) {
          lines[i] =
              _mm512_maskz_loadu_ps(i < depths ? first_lanes(columns - v) : 0, from + i * p_.b_row + v);
        }
      } else {
        const __mmask16 lanes = first_lanes(depths);
#pragma GCC unroll 16
        for (std::int64_t i = 0; i < kStep; ++i) {
          lines[i] = _mm512_maskz_loadu_ps(v + i < columns ? lanes : 0, from + (v + i) * p_.b_column);
        }
        transpose(lines);
      }
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kStep; ++i) _mm512_storeu_ps(aside + i * kTileColumns + v, lines[i]);
    }
    return {aside, kTileColumns};
  }

  void pack_panel(std::int64_t panel, std::int64_t column, std::int64_t k, std::int64_t depth) const {
    alignas(64) float aside[4][kStep * kTileColumns];
    const float* factors[2] = {columns_.factors + column, columns_.factors + blocks_.half_columns + column};
    for (std::int64_t d = 0; d < depth; d += kStep) {
      const std::int64_t count = smaller(kStep, depth - d);
      Block blocks[4];
      for (int q = 0; q < 4; ++q) blocks[q] = depths_of_b(q, column, k + d, count, aside[q]);
      for (std::int64_t i = 0; i < count; ++i) {
        float* to = b_sums(panel, 0) + (d + i) * kTileColumns;
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) {
          __m512 x[4];
#pragma GCC unroll 4
          for (int q = 0; q < 4; ++q) {
            x[q] = _mm512_mul_ps(_mm512_loadu_ps(blocks[q].data + i * blocks[q].row + v * kLanes),
                                 _mm512_loadu_ps(factors[q & 1] + v * kLanes));
          }
          const Sums sums = is_plain_ ? quarters_themselves(x) : sums_of_b(x);
#pragma GCC unroll 7
          for (int s = 0; s < kProducts; ++s)
            _mm512_storeu_ps(to + s * blocks_.b_sum + v * kLanes, sums.of[s]);
        }
      }
    }
  }

  const Problem& p_;
  const Operands& o_;
  const Blocks blocks_;
  float* const a_sums_;
  float* const b_sums_;
  const Scales rows_, columns_;
  bool is_plain_ = false;
};

}  // namespace

void multiply_avx512(const Problem& problem, const Operands& operands, float* scratch) {
  if (problem.rows > 0 && problem.columns > 0) Multiplication(problem, operands, scratch).run();
}

}  // namespace npu::product
