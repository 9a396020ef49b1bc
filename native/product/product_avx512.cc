// Strassen products for AVX-512.
#include <immintrin.h>

#include <iterator>

#include "product/avx512.h"
#include "product/product.h"

namespace npu::product {
namespace {

constexpr int kVectors = 3;               // of a tile's row
constexpr std::int64_t kStep = 16;        // depths of b that are packed at once
constexpr int kPause = 16;                // depths of a tile after which memory is asked for
constexpr std::int64_t kAhead = 1024;     // floats between sums of a that are used and those asked for
constexpr std::int64_t kRowsBefore = 96;  // of a tile's, during which the next panel of b is asked for
constexpr std::int64_t kTile = kTileRows * kTileColumns;
constexpr std::int64_t kRowsTogether = 16;  // of a, packed at once where rows are contiguous: a cache line

// -- what is multiplied, and where it goes
// -------------------------------------------------------------------

// Quarters of a matrix: 0 1 above 2 3. The first product that reaches a quarter of a tile writes it, the
// others change it.
enum class Update : std::uint8_t { Write, Add, Subtract };

struct Destination {
  int quarter;
  Update update;
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
    {0, 0, {{0, Update::Write}, {3, Update::Write}}, 2},     // (a0 + a3) (b0 + b3)
    {1, 1, {{2, Update::Write}, {3, Update::Subtract}}, 2},  // (a2 + a3) b0
    {2, 2, {{1, Update::Write}, {3, Update::Add}}, 2},       // a0 (b1 - b3)
    {3, 3, {{2, Update::Add}, {0, Update::Add}}, 2},         // a3 (b2 - b0)
    {4, 4, {{1, Update::Add}, {0, Update::Subtract}}, 2},    // (a0 + a1) b3
    {5, 5, {{3, Update::Add}, {}}, 1},                       // (a2 - a0) (b0 + b1)
    {6, 6, {{0, Update::Add}, {}}, 1},                       // (a1 - a3) (b2 + b3)
};

// The textbook's products of the quarters themselves.
constexpr Product kEightProducts[] = {
    {0, 0, {{0, Update::Write}, {}}, 1}, {1, 2, {{0, Update::Add}, {}}, 1},
    {0, 1, {{1, Update::Write}, {}}, 1}, {1, 3, {{1, Update::Add}, {}}, 1},
    {2, 0, {{2, Update::Write}, {}}, 1}, {3, 2, {{2, Update::Add}, {}}, 1},
    {2, 1, {{3, Update::Write}, {}}, 1}, {3, 3, {{3, Update::Add}, {}}, 1},
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

// -- what is asked for ahead of its use
// -----------------------------------------------------------------------

// Lines of up to four matrices, brought to the second-level cache a few at a time while something is
// computed.
class Ahead {
 public:
  void clear() { first_ = count_ = lines_ = 0; }

  // `rows` pieces of `length` floats, `step` floats apart.
  void add(const float* data, std::int64_t rows, std::int64_t length, std::int64_t step) {
    if (rows <= 0 || length <= 0) return;
    const std::int64_t begun = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data) / 4 % kLanes);
    const std::int64_t lines = (begun + length + kLanes - 1) / kLanes;
    pieces_[count_++] = {data - begun, rows, lines, step, 0};
    lines_ += rows * lines;
  }

  // Shares what there is among so many pauses.
  void spread(std::int64_t pauses) { each_ = (lines_ + pauses - 1) / pauses; }

  __attribute__((always_inline)) void fetch() {
    for (std::int64_t i = 0; i < each_ && first_ < count_; ++i) {
      Piece& piece = pieces_[first_];
      _mm_prefetch(reinterpret_cast<const char*>(piece.data + piece.line * kLanes), _MM_HINT_T1);
      if (++piece.line < piece.lines) continue;
      piece.line = 0;
      piece.data += piece.step;
      if (--piece.rows == 0) ++first_;
    }
  }

 private:
  struct Piece {
    const float* data;
    std::int64_t rows, lines, step, line;
  };
  Piece pieces_[4];
  std::int64_t first_ = 0, count_ = 0, lines_ = 0, each_ = 0;
};

// -- tiles
// ---------------------------------------------------------------------------------------------------

// A quarter of the tile of c that is being made: sums of scaled rows and columns.
struct Target {
  float* sums;
  Update update;
};

template <Update kUpdate, int kRows>
inline void update_tile(const __m512 (&sum)[kRows][kVectors], float* sums) {
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      float* at = sums + r * kTileColumns + v * kLanes;
      __m512 value = sum[r][v];
      if constexpr (kUpdate == Update::Add) value = _mm512_add_ps(_mm512_load_ps(at), value);
      if constexpr (kUpdate == Update::Subtract) value = _mm512_sub_ps(_mm512_load_ps(at), value);
      _mm512_store_ps(at, value);
    }
  }
}

// What is needed soon: a tile of c, operands that are packed next.
struct Soon {
  const float* c;
  std::int64_t c_row;
  Ahead (&operands)[2];
};

// The sums of a are packed row by row for 16 depths each (kByRows), or depth by depth, for the rows of a
// tile, of which the first kRows are multiplied.
template <bool kByRows, int kRows>
void tile(std::int64_t depth, const float* a, const float* b, const Target* targets, int count,
          const Soon& soon) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const auto step = [&](int k) __attribute__((always_inline)) {
    __m512 w[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) w[v] = _mm512_loadu_ps(b + k * kTileColumns + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m512 x = splat(kByRows ? a[r * kLanes + k] : a[k * kTileRows + r]);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(x, w[v], sum[r][v]);
    }
  };
  const float* c = soon.c;
  std::int64_t c_rows = c ? kRows : 0;
  for (std::int64_t left = depth; left >= kPause; left -= kPause) {
#pragma GCC unroll 8
    for (int line = 0; line < kPause * kTileRows / kLanes; ++line) {
      _mm_prefetch(reinterpret_cast<const char*>(a + kAhead + line * kLanes), _MM_HINT_T1);
    }
    for (Ahead& operand : soon.operands) operand.fetch();
    if (c_rows > 0) {
      for (int v = 0; v < kVectors; ++v) __builtin_prefetch(c + v * kLanes, 1, 3);
      c += soon.c_row;
      --c_rows;
    }
#pragma GCC unroll 16
    for (int k = 0; k < kPause; ++k) step(k);
    a += kPause * kTileRows;
    b += kPause * kTileColumns;
  }
  for (std::int64_t left = depth % kPause; left > 0; --left) {
    step(0);
    a += kByRows ? 1 : kTileRows;
    b += kTileColumns;
  }
  for (int t = 0; t < count; ++t) {
    switch (targets[t].update) {
      case Update::Write:
        update_tile<Update::Write, kRows>(sum, targets[t].sums);
        break;
      case Update::Add:
        update_tile<Update::Add, kRows>(sum, targets[t].sums);
        break;
      case Update::Subtract:
        update_tile<Update::Subtract, kRows>(sum, targets[t].sums);
        break;
    }
  }
}

using TileFn = void (*)(std::int64_t, const float*, const float*, const Target*, int, const Soon&);

template <bool kByRows>
constexpr TileFn kTiles[] = {tile<kByRows, 2>, tile<kByRows, 4>, tile<kByRows, 6>, tile<kByRows, 8>};
static_assert(std::size(kTiles<true>) * kRowUnit == kTileRows);

// -- sizes of rows and columns
// -------------------------------------------------------------------------------

inline __m512i magnitudes(__m512i numbers) {
  return _mm512_and_si512(numbers, _mm512_set1_epi32(0x7fffffff));
}

// Raises `most` to the largest magnitude of each line, as the bits of a float: they are ordered like the
// numbers, NaN last. Numbers of a line are contiguous.
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
    const std::uint32_t found = _mm512_reduce_max_epu32(_mm512_max_epu32(largest[0], largest[2]));
    if (found > most[i]) most[i] = found;
  }
}

// Likewise where it is the lines that are adjacent.
void measure_across(const float* data, std::int64_t lines, std::int64_t length, std::int64_t step,
                    std::uint32_t* most) {
  for (std::int64_t i = 0; i < lines; i += kLanes) {
    const __mmask16 lanes = first_lanes(lines - i);
    __m512i largest = _mm512_maskz_loadu_epi32(lanes, most + i);
    for (std::int64_t k = 0; k < length; ++k) {
      largest = _mm512_max_epu32(largest, magnitudes(_mm512_maskz_loadu_epi32(lanes, data + k * step + i)));
    }
    _mm512_mask_storeu_epi32(most + i, lanes, largest);
  }
}

constexpr int kBias = 127;     // of an exponent in a float's bits
constexpr int kMantissa = 23;  // bits

// Powers of two for rows of a, or columns of b: kCount of each half. A line is added to that of the other
// half: scaled by their factors, their largest numbers are about 1 and alike, so that the sum is as exact as
// each of them.
template <std::int64_t kCount>
struct Scales {
  alignas(64) std::uint32_t most[2][kCount];
  alignas(64) float factors[2][kCount];
  alignas(64) float exponents[2][kCount];  // what a line was divided by

  void clear() {
    for (int half = 0; half < 2; ++half) {
      for (std::int64_t i = 0; i < kCount; i += kLanes) {
        _mm512_store_si512(most[half] + i, _mm512_setzero_si512());
        _mm512_store_ps(factors[half] + i, splat(1.0f));
        _mm512_store_ps(exponents[half] + i, _mm512_setzero_ps());
      }
    }
  }

  // Whether all lines that were measured are finite.
  bool is_finite() const {
    __m512i largest = _mm512_setzero_si512();
    for (int half = 0; half < 2; ++half) {
      for (std::int64_t i = 0; i < kCount; i += kLanes) {
        largest = _mm512_max_epu32(largest, _mm512_load_si512(most[half] + i));
      }
    }
    return _mm512_reduce_max_epu32(largest) < 0x7f800000u;
  }

  void choose() {
    for (std::int64_t i = 0; i < kCount; i += kLanes) {
      const __m512i one = _mm512_load_si512(most[0] + i), other = _mm512_load_si512(most[1] + i);
      // The exponent of the quotient of both, to the nearest, is that of the factors.
      const __m512i mantissa = _mm512_and_si512(one, _mm512_set1_epi32((1 << kMantissa) - 1));
      const __m512i rest = _mm512_sub_epi32(_mm512_set1_epi32(1 << (kMantissa - 1)), mantissa);
      set(0, i, one, one);
      set(1, i, other, _mm512_add_epi32(other, rest));
    }
  }

 private:
  // The scale of lines by the bits of numbers of like size.
  void set(int half, std::int64_t at, __m512i measured, __m512i like) {
    // Within what normal numbers can undo.
    const __m512i least = _mm512_set1_epi32(1), last = _mm512_set1_epi32(2 * kBias - 1);
    const __m512i biased =
        _mm512_max_epi32(least, _mm512_min_epi32(last, _mm512_srai_epi32(like, kMantissa)));
    const __m512i reciprocal = _mm512_sub_epi32(_mm512_set1_epi32(2 * kBias), biased);
    _mm512_store_ps(factors[half] + at, _mm512_castsi512_ps(_mm512_slli_epi32(reciprocal, kMantissa)));
    // Whatever rounding leaves in a line of zeros becomes zero.
    const __m512 power = _mm512_cvtepi32_ps(_mm512_sub_epi32(biased, _mm512_set1_epi32(kBias)));
    const __mmask16 zeros = _mm512_testn_epi32_mask(measured, measured);
    _mm512_store_ps(exponents[half] + at, _mm512_mask_mov_ps(power, zeros, splat(-1000.0f)));
  }
};

// -- one problem
// ---------------------------------------------------------------------------------------------

struct Part {
  const float* data;
  std::int64_t rows, depths;  // or columns and depths of b
};

// Depths from k on and rows from m on, whose sums are packed, times a panel of columns from n on, of each
// half.
struct Place {
  std::int64_t k, m, n;
};

class Multiplication {
 public:
  Multiplication(const Problem& problem, const Operands& operands, float* scratch)
      : p_(problem),
        o_(operands),
        blocks_(problem),
        a_sums_(scratch),
        b_sums_(scratch + blocks_.a_floats()),
        row_exponents_{b_sums_ + blocks_.b_floats(), b_sums_ + blocks_.b_floats() + blocks_.rows} {}

  void run() {
    for (Place at{0, 0, 0}; at.k < blocks_.half_depth; at = after(at)) panel(at);
  }

 private:
  Place after(Place at) const {
    at.n += kTileColumns;
    if (at.n < blocks_.half_columns) return at;
    at.n = 0;
    at.m += blocks_.rows;
    if (at.m < blocks_.half_rows) return at;
    at.m = 0;
    at.k += blocks_.depth;
    return at;
  }

  const Schedule& schedule() const { return is_plain_ ? kPlain : kStrassen; }
  bool by_rows() const { return p_.a_column == 1; }
  std::int64_t rows_together() const { return by_rows() ? kTileRows : kRowsTogether; }
  std::int64_t depth_at(std::int64_t k) const { return smaller(blocks_.depth, blocks_.half_depth - k); }
  std::int64_t pauses(std::int64_t rows) const {
    return rows / kTileRows * kProducts * (blocks_.depth / kPause) + 1;
  }
  float* a_sums(std::int64_t row) const { return a_sums_ + row / kTileRows * kProducts * blocks_.a_sum; }

  void panel(const Place& at) {
    const std::int64_t rows = smaller(blocks_.rows, blocks_.half_rows - at.m);
    if (at.n == 0) packing_at_ = 0;
    const bool packs = pack_b(at) || at.n == packing_at_;
    soon_[0].clear();
    soon_[1].clear();
    bool is_late = false;
    for (std::int64_t i = 0; i < rows; i += rows_together()) {
      if (!is_late && i + kRowsBefore >= rows) {
        is_late = true;
        ask_for_b(after(at), rows - i);
      }
      if (packs) {
        if (pack_a(at, i, rows)) {  // sums that were packed before are not those that are needed now
          pack_b(at);
          packing_at_ = at.n + kTileColumns;
        }
        ask_for_a(at, i + rows_together(), rows);
      }
      for (std::int64_t row = i; row < smaller(i + rows_together(), rows); row += kTileRows) tiles(at, row);
    }
  }

  // A tile of each quarter of c.
  void tiles(const Place& at, std::int64_t row) {
    alignas(64) float sums[4][kTile];
    const std::int64_t depth = depth_at(at.k);
    float* c[4];
    std::int64_t rows[4], columns[4];
    for (int q = 0; q < 4; ++q) {
      const std::int64_t first_row = (q & 2 ? blocks_.half_rows : 0) + at.m + row;
      const std::int64_t first_column = (q & 1 ? blocks_.half_columns : 0) + at.n;
      rows[q] = smaller((q & 2 ? p_.rows : smaller(blocks_.half_rows, p_.rows)) - first_row, kTileRows);
      columns[q] = smaller((q & 1 ? p_.columns : smaller(blocks_.half_columns, p_.columns)) - first_column,
                           kTileColumns);
      c[q] = rows[q] > 0 && columns[q] > 0 ? o_.c + first_row * p_.c_row + first_column : nullptr;
    }
    const std::int64_t units = smaller(kTileRows, blocks_.half_rows - at.m - row) / kRowUnit;
    const TileFn make = (by_rows() ? kTiles<true> : kTiles<false>)[units - 1];
    const float* a = a_sums(row);
    for (int i = 0; i < schedule().count; ++i) {
      const Product& product = schedule().products[i];
      Target targets[2];
      for (int t = 0; t < product.count; ++t) {
        targets[t] = {sums[product.to[t].quarter], product.to[t].update};
      }
      const float* own = a + product.a * blocks_.a_sum;
      const float* b = b_sums_ + product.b * blocks_.b_sum;
      const Soon soon{i < 4 ? c[i] : nullptr, p_.c_row, soon_};
      make(depth, own, b, targets, product.count, soon);
    }
    for (int q = 0; q < 4; ++q) {
      if (c[q]) finish(at, row, q, sums[q], c[q], rows[q], columns[q]);
    }
  }

  // Unscaled sums of a tile's quarter become or change what c holds; the last depths complete it.
  void finish(const Place& at, std::int64_t row, int q, const float* sums, float* c, std::int64_t rows,
              std::int64_t columns) const {
    const bool adds = at.k > 0 || p_.accumulates;
    const bool completes = at.k + blocks_.depth >= blocks_.half_depth && !p_.epilogue.is_empty();
    const float* residual = completes && o_.residual ? o_.residual + (c - o_.c) : nullptr;
    const float* factor = completes && o_.factor ? o_.factor + (c - o_.c) : nullptr;
    const float* bias = completes && o_.bias ? o_.bias + (q & 1 ? blocks_.half_columns : 0) + at.n : nullptr;
    const float* row_exponents = row_exponents_[q / 2] + row;
    const float* column_exponents = columns_.exponents[q & 1];
    const auto put = [&](std::int64_t r, std::int64_t v, auto load,
                         auto store) __attribute__((always_inline)) {
      const std::int64_t to = r * p_.c_row + v;
      const __m512 exponents = _mm512_add_ps(splat(row_exponents[r]), _mm512_load_ps(column_exponents + v));
      __m512 value = _mm512_scalef_ps(_mm512_load_ps(sums + r * kTileColumns + v), exponents);
      if (adds) value = _mm512_add_ps(load(c + to), value);
      if (bias) value = _mm512_add_ps(value, load(bias + v));
      if (residual) value = _mm512_add_ps(value, load(residual + to));
      if (factor) value = _mm512_mul_ps(value, load(factor + to));
      if (completes) value = activate(p_.epilogue, value);
      store(c + to, value);
    };
    if (rows == kTileRows && columns == kTileColumns) {
      const auto load = [](const float* from) { return _mm512_loadu_ps(from); };
      const auto store = [](float* to, __m512 value) { _mm512_storeu_ps(to, value); };
      for (std::int64_t r = 0; r < kTileRows; ++r) {
        for (std::int64_t v = 0; v < kTileColumns; v += kLanes) put(r, v, load, store);
      }
      return;
    }
    for (std::int64_t v = 0; v < columns; v += kLanes) {
      const __mmask16 lanes = first_lanes(columns - v);
      const auto load = [lanes](const float* from) { return _mm512_maskz_loadu_ps(lanes, from); };
      const auto store = [lanes](float* to, __m512 value) { _mm512_mask_storeu_ps(to, lanes, value); };
      for (std::int64_t r = 0; r < rows; ++r) put(r, v, load, store);
    }
  }

  // -- packing: what is outside of an operand counts as zero --

  // Rows from m on and depths from k on in each quarter of a, `rows` at most.
  void quarters_of_a(std::int64_t m, std::int64_t rows, std::int64_t k, Part (&parts)[4]) const {
    for (int q = 0; q < 4; ++q) {
      const std::int64_t row = (q & 2 ? blocks_.half_rows : 0) + m, at = (q & 1 ? blocks_.half_depth : 0) + k;
      const std::int64_t last_row = q & 2 ? p_.rows : smaller(blocks_.half_rows, p_.rows);
      parts[q] = {o_.a + row * p_.a_row + at * p_.a_column, smaller(last_row - row, rows),
                  smaller((q & 1 ? p_.depth : blocks_.half_depth) - at, depth_at(k))};
    }
  }

  // Columns from n on and depths from k on in each quarter of b.
  void quarters_of_b(std::int64_t n, std::int64_t k, Part (&parts)[4]) const {
    for (int q = 0; q < 4; ++q) {
      const std::int64_t column = (q & 1 ? blocks_.half_columns : 0) + n;
      const std::int64_t at = (q & 2 ? blocks_.half_depth : 0) + k;
      const std::int64_t last = q & 1 ? p_.columns : smaller(blocks_.half_columns, p_.columns);
      parts[q] = {o_.b + at * p_.b_row + column * p_.b_column, smaller(last - column, kTileColumns),
                  smaller((q & 2 ? p_.depth : blocks_.half_depth) - at, depth_at(k))};
    }
  }

  // Rows of a, of those up to the last, while products of as many are made.
  void ask_for_a(const Place& at, std::int64_t row, std::int64_t last) {
    soon_[1].clear();
    if (row >= last) return;
    Part parts[4];
    quarters_of_a(at.m + row, smaller(rows_together(), last - row), at.k, parts);
    for (const Part& part : parts) {
      if (by_rows()) {
        soon_[1].add(part.data, part.rows, part.depths, p_.a_row);
      } else {
        soon_[1].add(part.data, part.depths, part.rows, p_.a_column);
      }
    }
    soon_[1].spread(pauses(rows_together()));
  }

  // The panel of b at a place, while products of so many rows are made.
  void ask_for_b(const Place& at, std::int64_t rows) {
    soon_[0].clear();
    if (at.k >= blocks_.half_depth) return;
    Part parts[4];
    quarters_of_b(at.n, at.k, parts);
    for (const Part& part : parts) {
      if (p_.b_column == 1) {
        soon_[0].add(part.data, part.depths, part.rows, p_.b_row);
      } else {
        soon_[0].add(part.data, part.rows, part.depths, p_.b_column);
      }
    }
    soon_[0].spread(pauses(rows));
  }

  template <typename Measured>
  bool turn_plain(const Measured& scales) {
    if (is_plain_ || scales.is_finite()) return false;
    is_plain_ = true;
    return true;
  }

  // Whether that found the first number that is not finite.
  bool pack_a(const Place& at, std::int64_t row, std::int64_t last) {
    const std::int64_t count = smaller(rows_together(), last - row);
    Part parts[4];
    quarters_of_a(at.m + row, count, at.k, parts);
    Scales<kRowsTogether> scales;
    scales.clear();
    for (int q = 0; q < 4; ++q) {
      const Part& part = parts[q];
      if (by_rows()) {
        measure_along(part.data, part.rows, part.depths, p_.a_row, scales.most[q / 2]);
      } else {
        measure_across(part.data, part.rows, part.depths, p_.a_column, scales.most[q / 2]);
      }
    }
    const bool found = turn_plain(scales);
    if (!is_plain_) scales.choose();
    for (int half = 0; half < 2; ++half) {
      const __mmask16 lanes = first_lanes(count);
      _mm512_mask_storeu_ps(row_exponents_[half] + row, lanes, _mm512_load_ps(scales.exponents[half]));
    }
    if (by_rows()) {
      pack_rows(parts, scales, a_sums(row), count, depth_at(at.k));
    } else {
      pack_columns(parts, scales, a_sums(row), count, depth_at(at.k));
    }
    return found;
  }

  void pack_rows(const Part (&parts)[4], const Scales<kRowsTogether>& scales, float* sums_at,
                 std::int64_t rows, std::int64_t depth) const {
    for (std::int64_t i = 0; i < rows; ++i) {
      float* to = sums_at + i * kLanes;
      std::int64_t length[4], shared = depth;
      for (int q = 0; q < 4; ++q) {
        length[q] = i < parts[q].rows ? parts[q].depths : 0;
        shared = smaller(shared, length[q]);
      }
      const __m512 factors[2] = {splat(scales.factors[0][i]), splat(scales.factors[1][i])};
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
        for (int s = 0; s < kProducts; ++s)
          _mm512_storeu_ps(to + s * blocks_.a_sum + d * kTileRows, sums.of[s]);
      }
    }
  }

  void pack_columns(const Part (&parts)[4], const Scales<kRowsTogether>& scales, float* sums_at,
                    std::int64_t rows, std::int64_t depth) const {
    const std::int64_t next_tile = kProducts * blocks_.a_sum;
    const __m512 factors[2] = {_mm512_load_ps(scales.factors[0]), _mm512_load_ps(scales.factors[1])};
    for (std::int64_t d = 0; d < depth; ++d) {
      __m512 x[4];
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        const __mmask16 lanes = d < parts[q].depths ? first_lanes(parts[q].rows) : 0;
        x[q] = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, parts[q].data + d * p_.a_column), factors[q / 2]);
      }
      const Sums sums = is_plain_ ? quarters_themselves(x) : sums_of_a(x);
      float* to = sums_at + d * kTileRows;
#pragma GCC unroll 7
      for (int s = 0; s < kProducts; ++s) {
        _mm256_storeu_ps(to + s * blocks_.a_sum, _mm512_castps512_ps256(sums.of[s]));
        if (rows > kTileRows) {
          _mm256_storeu_ps(to + s * blocks_.a_sum + next_tile, _mm512_extractf32x8_ps(sums.of[s], 1));
        }
      }
    }
  }

  struct Block {
    const float* data;
    std::int64_t row;
  };

  // Some depths of a panel of b, either where they are or brought together in `aside`.
  Block depths_of_b(const Part& part, std::int64_t d, std::int64_t count, float* aside) const {
    const std::int64_t depths = smaller(part.depths - d, count);
    const float* from = part.data + d * p_.b_row;
    if (p_.b_column == 1 && depths == count && part.rows == kTileColumns) return {from, p_.b_row};
    for (std::int64_t v = 0; v < kTileColumns; v += kLanes) {
      __m512 lines[kStep];
      if (p_.b_column == 1) {
        for (std::int64_t i = 0; i < kStep; ++i) {
          lines[i] =
              _mm512_maskz_loadu_ps(i < depths ? first_lanes(part.rows - v) : 0, from + i * p_.b_row + v);
        }
      } else {
        const __mmask16 lanes = first_lanes(depths);
#pragma GCC unroll 16
        for (std::int64_t i = 0; i < kStep; ++i) {
          lines[i] = _mm512_maskz_loadu_ps(v + i < part.rows ? lanes : 0, from + (v + i) * p_.b_column);
        }
        transpose(lines);
      }
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kStep; ++i) _mm512_storeu_ps(aside + i * kTileColumns + v, lines[i]);
    }
    return {aside, kTileColumns};
  }

  // Likewise.
  bool pack_b(const Place& at) {
    Part parts[4];
    quarters_of_b(at.n, at.k, parts);
    columns_.clear();
    for (int q = 0; q < 4; ++q) {
      const Part& part = parts[q];
      if (p_.b_row == 1 && p_.b_column != 1) {
        measure_along(part.data, part.rows, part.depths, p_.b_column, columns_.most[q & 1]);
      } else {
        measure_across(part.data, part.rows, part.depths, p_.b_row, columns_.most[q & 1]);
      }
    }
    const bool found = turn_plain(columns_);
    if (!is_plain_) columns_.choose();
    pack_panel(parts, depth_at(at.k));
    return found;
  }

  void pack_panel(const Part (&parts)[4], std::int64_t depth) const {
    alignas(64) float aside[4][kStep * kTileColumns];
    for (std::int64_t d = 0; d < depth; d += kStep) {
      const std::int64_t count = smaller(kStep, depth - d);
      Block blocks[4];
      for (int q = 0; q < 4; ++q) blocks[q] = depths_of_b(parts[q], d, count, aside[q]);
      for (std::int64_t i = 0; i < count; ++i) {
        float* to = b_sums_ + (d + i) * kTileColumns;
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) {
          __m512 x[4];
#pragma GCC unroll 4
          for (int q = 0; q < 4; ++q) {
            x[q] = _mm512_mul_ps(_mm512_loadu_ps(blocks[q].data + i * blocks[q].row + v * kLanes),
                                 _mm512_load_ps(columns_.factors[q & 1] + v * kLanes));
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
  float* const row_exponents_[2];
  Scales<kTileColumns> columns_;
  Ahead soon_[2];                // operands that are packed next: b, a
  std::int64_t packing_at_ = 0;  // the panel during which sums of a are packed
  bool is_plain_ =
      false;  // something was not finite: sums of quarters would carry it to other rows and columns
};

}  // namespace

void multiply_avx512(const Problem& problem, const Operands& operands, float* scratch) {
  if (problem.rows > 0 && problem.columns > 0) Multiplication(problem, operands, scratch).run();
}

}  // namespace npu::product
