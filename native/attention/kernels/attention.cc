// Attention of float32, and of bfloat16 by pairs.
#include <cstring>

#include "attention/layout.h"
#include "core/elements.h"

namespace npu::attention {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.69314718f;
constexpr float kLeast = -127.0f;  // 2 to this power is taken as zero
constexpr float kFar = 256.0f;     // logarithms of sums beyond it are taken apart

// -- numbers
// -------------------------------------------------------------------------------------------------

struct Float32 : npu::Float32 {
  // 2 to the power of r between -1/2 and 1/2, to 1e-7; exactly 1 for zero.
  static Vector power_within(Vector r) {
    Vector p = fma(splat(0.0013264727f), r, splat(0.009671513f));
    p = fma(p, r, splat(0.055507336f));
    p = fma(p, r, splat(0.24022242f));
    p = fma(p, r, splat(0.693147f));
    return fma(p, r, splat(1.0f));
  }

  // Multiply-add of 16 numbers.
  static Vector inner(const float* x, const float* y, std::int64_t count, Vector sum) {
    return fma(load(x, first_lanes(count)), load(y, first_lanes(count)), sum);
  }

  // The rows of a unit, one below the other.
  static void store_unit(char* to, std::int64_t, const Vector (&rows)[1]) { npu::store(to, rows[0]); }

  // The same, unit by unit: the layout they already have.
  static void store_unit(char* to, std::int64_t row, char*, const Vector (&rows)[1]) {
    store_unit(to, row, rows);
  }

  // Sixteen units of up to 16 lines.
  static void load_lines(const float* from, std::int64_t line, std::int64_t lines, std::int64_t depth,
                         Vector (&to)[16]) {
    const Lanes present = first_lanes(depth);
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < 16; ++i) to[i] = load(from + i * line, i < lines ? present : 0);
  }

  // Units of 32 numbers side by side, from the lines that a unit takes.
  static void load_unit(const float* from, std::int64_t, std::int64_t numbers, std::int64_t depth,
                        Vector (&to)[2]) {
    to[0] = load(from, depth > 0 ? first_lanes(numbers) : 0);
    to[1] = load(from + kLanes, depth > 0 ? first_lanes(numbers - kLanes) : 0);
  }
};

#ifdef __AVX512BF16__

inline __mmask32 first_halves(std::int64_t count) {
  return count >= 32 ? 0xffffffffu : count <= 0 ? 0 : (1u << count) - 1u;
}

struct BFloat16 : npu::BFloat16 {
  // To 3e-6.
  static Vector power_within(Vector r) {
    Vector p = fma(splat(0.009582853f), r, splat(0.055906426f));
    p = fma(p, r, splat(0.24024099f));
    p = fma(p, r, splat(0.6931242f));
    return fma(p, r, splat(1.0f));
  }

  static Vector inner(const std::uint16_t* x, const std::uint16_t* y, std::int64_t count, Vector sum) {
    const __mmask32 lanes = first_halves(count);
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(lanes, x)),
                            reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(lanes, y)));
  }

  static void store_unit(char* to, std::int64_t row, const Vector (&rows)[2]) {
    store_halves(to, row, narrowed(rows[0], rows[1]));
  }

  static void store_unit(char* to, std::int64_t row, char* across, const Vector (&rows)[2]) {
    const __m512i both = narrowed(rows[0], rows[1]);
    store_halves(to, row, both);
    alignas(64) static constexpr std::uint16_t kPairs[] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    _mm512_storeu_si512(across, _mm512_permutexvar_epi16(_mm512_load_si512(kPairs), both));
  }

  static void store_halves(char* to, std::int64_t row, __m512i both) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(both));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + row), _mm512_extracti64x4_epi64(both, 1));
  }

  static void load_lines(const std::uint16_t* from, std::int64_t line, std::int64_t lines, std::int64_t depth,
                         Vector (&to)[16]) {
    const __mmask32 present = first_halves(depth);
    if (lines >= 16 && present == 0xffffffffu) {
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < 16; ++i) to[i] = npu::load(from + i * line);
      return;
    }
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < 16; ++i) {
      to[i] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(i < lines ? present : 0, from + i * line));
    }
  }

  static void load_unit(const std::uint16_t* from, std::int64_t line, std::int64_t numbers,
                        std::int64_t depth, Vector (&to)[2]) {
    const __mmask32 present = first_halves(numbers);
    const __m512i even = _mm512_maskz_loadu_epi16(depth > 0 ? present : 0, from);
    const __m512i odd = _mm512_maskz_loadu_epi16(depth > 1 ? present : 0, from + line);
    const __m512i low = _mm512_unpacklo_epi16(even, odd), high = _mm512_unpackhi_epi16(even, odd);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    to[0] = _mm512_castsi512_ps(_mm512_permutex2var_epi64(low, first, high));
    to[1] = _mm512_castsi512_ps(_mm512_permutex2var_epi64(low, second, high));
  }
};

#endif

// -- packing: panels of 64 columns, unit by unit; what is outside counts as zero
// ---------------------------------------

template <class T>
const typename T::Value* values_of(const Rows& m) {
  return reinterpret_cast<const typename T::Value*>(m.data);
}

// The transpose of m: its columns are summed over.
template <class T>
void pack_lines(const Rows& m, std::int64_t rows, std::int64_t columns, char* to) {
  const std::int64_t count = units(columns, T::kInWord);
  for (std::int64_t j = 0; j < rows; j += kPanel, to += 4 * count * kPanel) {
    for (std::int64_t v = 0; v < kPanel; v += kLanes) {
      const typename T::Value* from = values_of<T>(m) + (j + v) * m.row;
      for (std::int64_t u = 0; u < count; u += 16) {
        const std::int64_t at = u * T::kInWord;
        Vector lines[16];
        T::load_lines(from + at, m.row, rows - j - v, columns - at, lines);
        transpose(lines);
#pragma GCC unroll 16
        for (std::int64_t i = 0; i < 16; ++i) {
          if (u + i < count) store(to + 4 * ((u + i) * kPanel + v), lines[i]);
        }
      }
    }
  }
}

// m itself: its rows are summed over.
template <class T>
void pack_columns(const Rows& m, std::int64_t rows, std::int64_t columns, char* to) {
  const std::int64_t count = units(rows, T::kInWord);
  for (std::int64_t j = 0; j < columns; j += kPanel) {
    for (std::int64_t u = 0; u < count; ++u, to += 4 * kPanel) {
      const std::int64_t row = u * T::kInWord;
      for (std::int64_t v = 0; v < kPanel; v += 2 * kLanes) {
        Vector found[2];
        T::load_unit(values_of<T>(m) + row * m.row + j + v, m.row, columns - j - v, rows - row, found);
        store(to + 4 * v, found[0]);
        store(to + 4 * (v + kLanes), found[1]);
      }
    }
  }
}

// -- products
// ------------------------------------------------------------------------------------------------

// Some rows times one packed panel. Units of a row are contiguous and rows `step` bytes apart, or, across,
// those of a column side by side.
struct Tile {
  std::int64_t count;  // units that are summed over
  const char* rows;
  std::int64_t step;
  const char* panel;
  char* to;
  std::int64_t to_row;             // bytes
  const float* factors = nullptr;  // of each row's result
  Lanes last = kAllLanes;          // of the last vector of a result
};

// Sums are left as they are, or become results: numbers like the operands.
template <class T, int kRows, int kWidth, bool kAcross, bool kResults>
void tile(const Tile& t) {
  Vector sum[kRows][kWidth];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) sum[r][v] = zero();
  }
  const char *a = t.rows, *b = t.panel;
  const std::int64_t step = t.step;
  for (std::int64_t u = 0; u < t.count; ++u, a += kAcross ? step : 4, b += 4 * kPanel) {
    Vector w[kWidth];
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) w[v] = load(b + 4 * v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vector word =
          T::splat_word(reinterpret_cast<const typename T::Value*>(a + r * (kAcross ? 4 : step)));
#pragma GCC unroll 4
      for (int v = 0; v < kWidth; ++v) sum[r][v] = T::multiply(word, w[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    char* to = t.to + r * t.to_row;
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) {
      if constexpr (kResults) {
        const Vector result = sum[r][v] * splat(t.factors[r]);
        T::store(reinterpret_cast<typename T::Value*>(to) + v * kLanes, v + 1 < kWidth ? kAllLanes : t.last,
                 result);
      } else {
        store(to + 4 * v * kLanes, sum[r][v]);
      }
    }
  }
}

using TileFn = void (*)(const Tile&);

template <class T, bool kAcross, bool kResults, int kWidth>
constexpr TileFn kTilesOf[] = {tile<T, 1, kWidth, kAcross, kResults>, tile<T, 2, kWidth, kAcross, kResults>,
                               tile<T, 3, kWidth, kAcross, kResults>, tile<T, 4, kWidth, kAcross, kResults>,
                               tile<T, 5, kWidth, kAcross, kResults>, tile<T, 6, kWidth, kAcross, kResults>};

template <class T, bool kAcross, bool kResults>
void run_tile(std::int64_t rows, std::int64_t columns, const Tile& t) {
  constexpr int kSecond = smaller(2, kTileVectors), kThird = smaller(3, kTileVectors);
  constexpr const TileFn* kTiles[] = {
      kTilesOf<T, kAcross, kResults, 1>, kTilesOf<T, kAcross, kResults, kSecond>,
      kTilesOf<T, kAcross, kResults, kThird>, kTilesOf<T, kAcross, kResults, kTileVectors>};
  constexpr std::int64_t kBytes = kResults ? sizeof(typename T::Value) : sizeof(float);
  const std::int64_t vectors = divide_up(smaller(columns, kPanel), kLanes);
  for (std::int64_t v = 0; v < vectors; v += kTileVectors) {
    Tile some = t;
    some.panel += 4 * v * kLanes;
    some.to += kBytes * v * kLanes;
    if (v + kTileVectors < vectors) some.last = kAllLanes;
    kTiles[smaller(vectors - v, kTileVectors) - 1][rows - 1](some);
  }
}

// The lanes of the last vector of a panel that has `columns` and more.
inline Lanes last_lanes(std::int64_t columns) {
  return columns >= kPanel ? kAllLanes : first_lanes((columns - 1) % kLanes + 1);
}

// Calls body(first, count) for tiles of a like number of rows, all but the last of whole units.
template <class Body>
void each_tile(std::int64_t first, std::int64_t last, std::int64_t in_unit, Body&& body) {
  for (std::int64_t tiles = divide_up(last - first, kTileRows); tiles > 0; --tiles) {
    const std::int64_t even = divide_up(units(last - first, in_unit), tiles) * in_unit;
    const std::int64_t count = smaller(even, last - first);
    body(first, count);
    first += count;
  }
}

template <class T>
constexpr std::int64_t kSize = sizeof(typename T::Value);

// Asks for the rows that the next head reads and writes, a few at a time: the processor waits for few lines
// at once, and those of the present head are among them.
class Ahead {
 public:
  void add(const Rows& m, std::int64_t rows, std::int64_t row_bytes, bool is_written) {
    matrices_[count_++] = {m.data, m.row, rows, row_bytes, is_written};
    rows_ += rows;
    bytes_ += rows * row_bytes;
  }

  // As many rows as it takes to have asked for all of them after so many calls.
  void share(std::int64_t calls, std::int64_t most_bytes) {
    at_once_ = bytes_ > most_bytes ? 0 : divide_up(rows_, calls);
  }

  void some(std::int64_t size) {
    for (std::int64_t i = 0; i < at_once_ && at_ < count_; ++i) {
      const Matrix& m = matrices_[at_];
      const char* row = m.data + row_ * m.row * size;
      for (std::int64_t b = 0; b < m.row_bytes; b += 64) {
        if (m.is_written) {
          __builtin_prefetch(row + b, 1);
        } else {
          _mm_prefetch(row + b, _MM_HINT_T1);
        }
      }
      if (++row_ == m.rows) row_ = 0, ++at_;
    }
  }

 private:
  struct Matrix {
    const char* data;
    std::int64_t row, rows, row_bytes;
    bool is_written;
  };

  Matrix matrices_[8];
  std::int64_t count_ = 0, rows_ = 0, bytes_ = 0, at_once_ = 0;
  std::int64_t at_ = 0, row_ = 0;
};

// -- forward
// -------------------------------------------------------------------------------------------------

// 2 to the power of t <= 0, zero for minus infinity: that of the nearest integer goes into the exponent by an
// addition of integers, which the units for sums of floats do not wait for.
template <class T>
inline Vector power_of_two(Vector t) {
  const Vector shift = splat(12582912.0f);  // numbers of this size are integers
  t = maximum(splat(kLeast), t);
  const Vector shifted = t + shift;
  const Vector r = t - (shifted - shift);
  return add_exponent(T::power_within(r), shifted);
}

// The exponential of t <= 0, zero for minus infinity.
template <class T>
inline Vector exponential(Vector t) {
  return power_of_two<T>(t * splat(kLog2E));
}

// True if a query with this maximum score has no weights.
inline bool sees_nothing(const Mask& mask, float top) { return mask.zeros && top == -__builtin_inff(); }

// True if the largest product is the largest score.
inline bool is_plain(const Mask& mask, const Shape& shape) {
  return mask.kind == MaskKind::None && shape.scale > 0;
}

// The logarithm of x > 0.
inline Vector logarithm(Vector x) {
  const Vector power = exponent_of(x * splat(1.3333334f));  // of what is below 3/4
  const Vector m = times_power(x, zero() - power);
  const Vector z = (m - splat(1.0f)) / (m + splat(1.0f));
  const Vector square = z * z;
  Vector p = fma(splat(2.0f / 9), square, splat(2.0f / 7));
  p = fma(p, square, splat(2.0f / 5));
  p = fma(p, square, splat(2.0f / 3));
  p = fma(p, square, splat(2.0f));
  return fma(power, splat(kLn2), p * z);
}

template <class T>
class ForwardHead {
 public:
  ForwardHead(const Forward& head, const Forward* next, char* scratch)
      : h_(head),
        s_(head.shape),
        layout_(head.shape, T::kInWord),
        scratch_(scratch),
        is_plain_(is_plain(head.mask, head.shape)) {
    if (next) look_ahead(*next);
  }

  void run(std::int64_t first, std::int64_t last) {
    pack_lines<T>(h_.k, s_.keys, s_.depth, scratch_);
    pack_columns<T>(h_.v, s_.keys, s_.width, scratch_ + layout_.values);
    each_tile(first, last, 1, [&](std::int64_t row, std::int64_t rows) { some_queries(row, rows); });
  }

 private:
  float* scores() const { return reinterpret_cast<float*>(scratch_ + layout_.scores); }
  char* weights() const { return scratch_ + layout_.weights; }

  std::int64_t seen_by(std::int64_t query) const { return s_.causal ? smaller(query + 1, s_.keys) : s_.keys; }

  void look_ahead(const Forward& next) {
    ahead_.add(next.q, s_.queries, s_.depth * kSize<T>, false);
    ahead_.add(next.k, s_.keys, s_.depth * kSize<T>, false);
    ahead_.add(next.v, s_.keys, s_.width * kSize<T>, false);
    ahead_.add(next.y, s_.queries, s_.width * kSize<T>, true);
    ahead_.share(divide_up(s_.queries, kTileRows) * (divide_up(s_.keys, kPanel) + 1), s_.ahead_bytes);
  }

  void some_queries(std::int64_t row, std::int64_t rows) {
    const std::int64_t seen = seen_by(row + rows - 1), depth = units(s_.depth, T::kInWord);
    const std::int64_t step = h_.q.row * kSize<T>;
    for (std::int64_t j = 0; j < seen; j += kPanel) {
      ahead_.some(kSize<T>);
      run_tile<T, false, false>(rows, seen - j,
                                {depth, h_.q.data + row * step, step, scratch_ + 4 * j * depth,
                                 reinterpret_cast<char*>(scores() + j), 4 * layout_.score_row});
    }
    alignas(64) float tops[kLanes] = {}, sums[kLanes], shares[kLanes];
    store(sums, splat(1.0f));
    for (std::int64_t r = 0; r < rows; ++r)
      tops[r] = is_plain_ ? largest(r, seen_by(row + r)) : largest_masked(row + r, r, seen);
    for (std::int64_t r = 0; r < rows; ++r) {
      const bool none = sees_nothing(h_.mask, tops[r]);
      if (none) tops[r] = 0;
      sums[r] = raise(r, seen_by(row + r), seen, tops[r], is_plain_ ? s_.scale * kLog2E : kLog2E);
      if (none) sums[r] = 1;  // weights are zero, so is the query's result
    }
    const Vector all = load(sums);
    store(shares, splat(1.0f) / all);
    if (h_.sums) {
      const Vector found = fma(load(tops), splat(is_plain_ ? s_.scale : 1.0f), logarithm(all));
      store(h_.sums + row, first_lanes(rows), found);
    }
    ahead_.some(kSize<T>);
    mix(row, rows, seen, shares);
  }

  // The scores of a query, scaled and masked; keys outside of the lanes have minus infinity.
  Vector masked(const float* scores, std::int64_t query, std::int64_t key, Lanes lanes) const {
    Vector t = load(scores + key);
    const char* mask = h_.mask.data + query * h_.mask.row;
    if (h_.mask.kind == MaskKind::Added) {
      t = fma(t, splat(s_.scale), load(mask + 4 * key, lanes));
    } else {
      t = t * splat(s_.scale);
    }
    if (h_.mask.kind == MaskKind::Kept) {
      const Lanes kept = nonzero_bytes(mask + key, lanes);
      t = choose(kept, t, splat(h_.mask.fill));
    }
    return choose(lanes, t, splat(-__builtin_inff()));
  }

  // Some scores of a row; keys that are not seen have minus infinity.
  static Vector some(const float* row, std::int64_t key, std::int64_t seen) {
    return load_or(splat(-__builtin_inff()), row + key, first_lanes(seen - key));
  }

  // The largest score of a query before it is scaled.
  float largest(std::int64_t r, std::int64_t seen) const {
    const float* row = scores() + r * layout_.score_row;
    Vector most[2] = {splat(-__builtin_inff()), splat(-__builtin_inff())};
    std::int64_t n = 0;
    for (; n + 2 * kLanes <= seen; n += 2 * kLanes) {
      most[0] = maximum(most[0], load(row + n));
      most[1] = maximum(most[1], load(row + n + kLanes));
    }
    for (; n < seen; n += kLanes) most[0] = maximum(most[0], some(row, n, seen));
    return largest_of(maximum(most[0], most[1]));
  }

  // The largest score of a query; leaves its scores scaled and masked.
  float largest_masked(std::int64_t query, std::int64_t r, std::int64_t written) {
    float* row = scores() + r * layout_.score_row;
    const std::int64_t seen = seen_by(query);
    Vector most = splat(-__builtin_inff());
    for (std::int64_t n = 0; n < written; n += kLanes) {
      const Vector t = masked(row, query, n, first_lanes(seen - n));
      store(row + n, t);
      most = maximum(most, t);
    }
    return largest_of(most);
  }

  // Weights are 2 to the power of a query's scores less the largest, times the factor; gives their sum.
  float raise(std::int64_t r, std::int64_t seen, std::int64_t written, float top, float factor) {
    const float* row = scores() + r * layout_.score_row;
    auto* to = reinterpret_cast<typename T::Value*>(weights() + r * layout_.weight_row);
    const auto power = [&](Vector t) { return power_of_two<T>((t - splat(top)) * splat(factor)); };
    Vector total[2] = {zero(), zero()};
    std::int64_t n = 0;
    for (; n + 2 * kLanes <= seen; n += 2 * kLanes) {
      const Vector first = power(load(row + n)), second = power(load(row + n + kLanes));
      total[0] = total[0] + first;
      total[1] = total[1] + second;
      T::store_two(to + n, first, second);
    }
    for (; n < written; n += kLanes) {
      const Vector weight = power(some(row, n, seen));
      total[0] = total[0] + weight;
      T::store(to + n, kAllLanes, weight);
    }
    return sum_of(total[0] + total[1]);
  }

  void mix(std::int64_t row, std::int64_t rows, std::int64_t seen, const float* shares) const {
    const std::int64_t count = units(seen, T::kInWord), all = units(s_.keys, T::kInWord);
    const std::int64_t to_row = h_.y.row * kSize<T>;
    for (std::int64_t j = 0; j < s_.width; j += kPanel) {
      run_tile<T, false, true>(
          rows, s_.width - j,
          {count, weights(), layout_.weight_row, scratch_ + layout_.values + 4 * j * all,
           h_.y.data + row * to_row + j * kSize<T>, to_row, shares, last_lanes(s_.width - j)});
    }
  }

  const Forward& h_;
  const Shape& s_;
  const ForwardLayout layout_;
  char* const scratch_;
  const bool is_plain_;
  Ahead ahead_;
};

// -- backward
// ------------------------------------------------------------------------------------------------

// With weights p and y = p v: dv = p' dy, the slopes of scores are p (dy v' - inner), where inner is dy y'
// for each query, and dq = slopes k, dk = slopes' q, both scaled as the scores are. Weights and slopes are
// formed by keys; for dq the units of slopes are read across.
template <class T>
class BackwardHead {
 public:
  BackwardHead(const Backward& head, const Backward* next, char* scratch)
      : h_(head), s_(head.shape), layout_(head.shape, T::kInWord), scratch_(scratch) {
    if (next) look_ahead(*next);
  }

  void run() {
    measure();
    pack_lines<T>(h_.q, s_.queries, s_.depth, scratch_ + layout_.query_lines);
    pack_lines<T>(h_.dy, s_.queries, s_.width, scratch_ + layout_.gradient_lines);
    is_plain_ = is_plain(h_.mask, s_);
    for (std::int64_t j = 0; j < s_.queries; j += kPanel) {
      if (!is_far(j)) continue;
      is_plain_ = false;
      sum_up(j);
    }
    pack_columns<T>(h_.dy, s_.queries, s_.width, gradient_columns());
    pack_columns<T>(h_.q, s_.queries, s_.depth, columns());
    each_tile(0, s_.keys, T::kInWord, [&](std::int64_t row, std::int64_t rows) {
      some_keys(row, rows);
      ahead_.some(kSize<T>);
      by_keys(row, rows, weights(), layout_.weight_row, gradient_columns(), s_.width, h_.dv, 1.0f);
      ahead_.some(kSize<T>);
      by_keys(row, rows, slopes(row), slope_row(), columns(), s_.depth, h_.dk, s_.scale);
    });
    pack_columns<T>(h_.k, s_.keys, s_.depth, columns());
    by_queries(h_.dq);
  }

 private:
  float* tiles() const { return reinterpret_cast<float*>(scratch_ + layout_.tiles); }
  float* inner() const { return reinterpret_cast<float*>(scratch_ + layout_.inner); }
  float* tops() const { return reinterpret_cast<float*>(scratch_ + layout_.tops); }
  float* logs() const { return reinterpret_cast<float*>(scratch_ + layout_.logs); }
  char* columns() const { return scratch_ + layout_.columns; }
  char* gradient_columns() const { return scratch_ + layout_.gradient_columns; }
  char* across() const { return scratch_ + layout_.across; }

  // Those of the keys of a tile, from its first on. A slope that is one unit is transposed already.
  char* weights() const { return scratch_ + layout_.weights; }
  char* slopes(std::int64_t row) const {
    return T::kInWord == 1 ? across() + row * layout_.across_row : scratch_ + layout_.slopes;
  }
  std::int64_t slope_row() const { return T::kInWord == 1 ? layout_.across_row : layout_.weight_row; }

  void look_ahead(const Backward& next) {
    const std::int64_t depth = s_.depth * kSize<T>, width = s_.width * kSize<T>;
    ahead_.add(next.dy, s_.queries, width, false);
    ahead_.add(next.y, s_.queries, width, false);
    ahead_.add(next.q, s_.queries, depth, false);
    ahead_.add(next.k, s_.keys, depth, false);
    ahead_.add(next.v, s_.keys, width, false);
    ahead_.add(next.dv, s_.keys, width, true);
    ahead_.add(next.dk, s_.keys, depth, true);
    ahead_.add(next.dq, s_.queries, depth, true);
    ahead_.share(divide_up(s_.keys, kTileRows) * 2 * (divide_up(s_.queries, kPanel) + 1), s_.ahead_bytes);
  }

  // Sums over queries for the keys of a tile.
  void by_keys(std::int64_t row, std::int64_t rows, const char* factors_of, std::int64_t step,
               const char* packed, std::int64_t width, const Rows& to, float scale) const {
    const float scales[kTileRows] = {scale, scale, scale, scale, scale, scale};
    const std::int64_t all = units(s_.queries, T::kInWord), to_row = to.row * kSize<T>;
    const std::int64_t first = s_.causal ? smaller(row / T::kInWord, all) : 0;  // queries before see none
    for (std::int64_t j = 0; j < width; j += kPanel) {
      run_tile<T, false, true>(
          rows, width - j,
          {all - first, factors_of + 4 * first, step, packed + 4 * kPanel * first + 4 * j * all,
           to.data + row * to_row + j * kSize<T>, to_row, scales, last_lanes(width - j)});
    }
  }

  // Sums over keys for all queries.
  void by_queries(const Rows& to) const {
    const float scales[kTileRows] = {s_.scale, s_.scale, s_.scale, s_.scale, s_.scale, s_.scale};
    const std::int64_t all = units(s_.keys, T::kInWord), to_row = to.row * kSize<T>;
    for (std::int64_t j = 0; j < s_.depth; j += kPanel) {
      each_tile(0, s_.queries, 1, [&](std::int64_t row, std::int64_t rows) {
        const std::int64_t count = s_.causal ? smaller(units(row + rows, T::kInWord), all) : all;
        run_tile<T, true, true>(
            rows, s_.depth - j,
            {count, across() + 4 * row, layout_.across_row, columns() + 4 * j * all,
             to.data + row * to_row + j * kSize<T>, to_row, scales, last_lanes(s_.depth - j)});
      });
    }
  }

  // The inner product of dy and y, and the logarithm of the sum, of each query: a weight is the exponential
  // of its score less the query's top and log.
  void measure() {
    for (std::int64_t i = 0; i < s_.queries; ++i) {
      Vector total = zero();
      for (std::int64_t v = 0; v < s_.width; v += kLanes * T::kInWord) {
        total = T::inner(values_of<T>(h_.dy) + i * h_.dy.row + v, values_of<T>(h_.y) + i * h_.y.row + v,
                         s_.width - v, total);
      }
      inner()[i] = sum_of(total);
      tops()[i] = h_.sums[i];
    }
    for (std::int64_t i = 0; i < divide_up(s_.queries, kPanel) * kPanel; ++i) {
      logs()[i] = 0;
      if (i >= s_.queries) inner()[i] = tops()[i] = 0;
    }
  }

  // Whether a query of the panel has scores so large that the logarithm of their sum says nothing about how
  // many there are: those of a query all of whose keys are hidden by a finite number.
  bool is_far(std::int64_t panel) const {
    const std::int64_t last = smaller(panel + kPanel, s_.queries);
    for (std::int64_t i = panel; i < last; ++i) {
      if (__builtin_fabsf(h_.sums[i]) > kFar) return true;
    }
    return false;
  }

  // Calls body(vector of scores, first query) for all keys of the queries of a panel.
  template <class Body>
  void each_score(std::int64_t panel, Body&& body) const {
    each_tile(0, s_.keys, 1, [&](std::int64_t row, std::int64_t rows) {
      multiply_lines(h_.k, s_.depth, layout_.query_lines, row, rows, panel, panel, tiles());
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t v = 0; v < smaller(kPanel, s_.queries - panel); v += kLanes) {
          const Lanes lanes = seen(row + r, panel + v);
          Lanes kept;
          const Vector t = masked(row + r, panel + v, lanes, tiles() + r * kPanel + v, &kept);
          body(choose(lanes, t, splat(-__builtin_inff())), panel + v);
        }
      }
    });
  }

  // The largest score of each query of a panel, and the logarithm of the sum of exponentials below it.
  void sum_up(std::int64_t panel) {
    for (std::int64_t v = 0; v < kPanel; v += kLanes) {
      store(tops() + panel + v, splat(-__builtin_inff()));
      store(logs() + panel + v, splat(0));
    }
    each_score(panel, [&](Vector t, std::int64_t query) {
      store(tops() + query, maximum(load(tops() + query), t));
    });
    const std::int64_t last = smaller(panel + kPanel, s_.queries);
    for (std::int64_t i = panel; i < last; ++i) {
      if (sees_nothing(h_.mask, tops()[i])) tops()[i] = 0;
    }
    each_score(panel, [&](Vector t, std::int64_t query) {
      const Vector weight = exponential<T>(t - load(tops() + query));
      store(logs() + query, load(logs() + query) + weight);
    });
    for (std::int64_t i = panel; i < last; ++i)
      logs()[i] = h_.mask.zeros && logs()[i] == 0 ? 0 : __builtin_log2f(logs()[i]) * kLn2;
  }

  // Rows of a matrix times a packed panel of queries, from one of a multiple of 16 on.
  void multiply_lines(const Rows& m, std::int64_t columns, std::int64_t packed, std::int64_t row,
                      std::int64_t rows, std::int64_t panel, std::int64_t query, float* to) const {
    const std::int64_t count = units(columns, T::kInWord), step = m.row * kSize<T>;
    run_tile<T, false, false>(
        rows, smaller(panel + kPanel, s_.queries) - query,
        {count, m.data + row * step, step, scratch_ + packed + 4 * panel * count + 4 * (query - panel),
         reinterpret_cast<char*>(to + query - panel), 4 * kPanel});
  }

  // The keys of a unit, the r-th and following ones of a tile, and some queries of a panel.
  struct Unit {
    std::int64_t row, r;
    std::int64_t first, last;
    const float *scores, *through;

    std::int64_t key() const { return row + r; }
  };

  // Weights and slopes of some keys for all queries, but for those that see none of the keys, nor does any
  // other query of their tile.
  void some_keys(std::int64_t row, std::int64_t rows) {
    float* scores = tiles();
    float* through = tiles() + kTileRows * kPanel;
    std::int64_t query = 0;
    if (s_.causal && row > kTileRows) query = (row - kTileRows) / kLanes * kLanes;
    while (query < s_.queries) {
      const std::int64_t panel = query / kPanel * kPanel, last = smaller(panel + kPanel, s_.queries);
      ahead_.some(kSize<T>);
      multiply_lines(h_.k, s_.depth, layout_.query_lines, row, rows, panel, query, scores);
      ahead_.some(kSize<T>);
      multiply_lines(h_.v, s_.width, layout_.gradient_lines, row, rows, panel, query, through);
      if (is_plain_ && rows % T::kInWord) leave_out(rows, scores, through);
      for (std::int64_t r = 0; r < rows; r += T::kInWord) {
        const Unit unit{row, r, query, last, scores + r * kPanel, through + r * kPanel};
        if (!is_plain_) {
          differentiate_masked(unit);
        } else if (s_.causal) {
          differentiate<true>(unit);
        } else {
          differentiate<false>(unit);
        }
      }
      query = panel + kPanel;
    }
  }

  // Keys past the end have zero weight.
  static void leave_out(std::int64_t r, float* scores, float* through) {
    for (std::int64_t v = 0; v < kPanel; v += kLanes) {
      store(scores + r * kPanel + v, splat(-__builtin_inff()));
      store(through + r * kPanel + v, zero());
    }
  }

  // Those of sixteen queries that are there and see a key.
  Lanes seen(std::int64_t key, std::int64_t query) const {
    const Lanes lanes = first_lanes(s_.queries - query);
    return s_.causal ? lanes & after(key, query) : lanes;
  }

  // Scaled and masked scores of sixteen queries and one key; `kept` are those that the mask does not hide.
  Vector masked(std::int64_t key, std::int64_t query, Lanes lanes, const float* scores, Lanes* kept) const {
    const Vector t = load(scores);
    *kept = lanes;
    if (h_.mask.kind == MaskKind::None) return t * splat(s_.scale);
    const char* mask = h_.mask.data + query * h_.mask.row;
    if (h_.mask.kind == MaskKind::Added) return fma(t, splat(s_.scale), added(mask + 4 * key, lanes));
    *kept = lanes & visible(mask + key, query);
    return choose(*kept, t * splat(s_.scale), splat(h_.mask.fill));
  }

  Vector added(const char* mask, Lanes lanes) const {
    if (h_.mask.row == 0) {
      float value;
      std::memcpy(&value, mask, sizeof value);
      return splat(value);
    }
    alignas(64) float values[kLanes] = {};
    for (int i = 0; i < kLanes; ++i) {
      if (lanes >> i & 1) std::memcpy(values + i, mask + i * h_.mask.row, sizeof(float));
    }
    return load(values);
  }

  Lanes visible(const char* mask, std::int64_t query) const {
    if (h_.mask.row == 0) return *mask ? kAllLanes : 0;
    unsigned found = 0;
    const std::int64_t present = smaller(kLanes, s_.queries - query);
    for (std::int64_t i = 0; i < present; ++i) found |= (mask[i * h_.mask.row] != 0 ? 1u : 0u) << i;
    return static_cast<Lanes>(found);
  }

  // Where scores are plain.
  template <bool kCausal>
  void differentiate(const Unit& unit) {
    const Vector factor = splat(s_.scale * kLog2E);
    const float *const all_tops = tops(), *const all_inner = inner();
    const Unit u = unit;
    const Places to = places(unit);
    for (std::int64_t query = u.first; query < u.last; query += kLanes) {
      const Vector top = load(all_tops + query) * splat(kLog2E);
      const Vector taken = load(all_inner + query);
      Vector weight[T::kInWord], slope[T::kInWord];
#pragma GCC unroll 2
      for (std::int64_t i = 0; i < T::kInWord; ++i) {
        const std::int64_t at = i * kPanel + query % kPanel;
        const Vector t = fms(load(u.scores + at), factor, top);
        weight[i] = power_of_two<T>(t);
        if (kCausal) weight[i] = npu::keep(after(u.key() + i, query), weight[i]);
        slope[i] = weight[i] * (load(u.through + at) - taken);
      }
      keep(to, query, weight, slope);
    }
  }

  // Where the weights and slopes of a unit's keys go.
  struct Places {
    char *weights, *slopes, *across;
    std::int64_t weight_row, slope_row;
  };

  Places places(const Unit& unit) const {
    return {weights() + unit.r * layout_.weight_row, slopes(unit.row) + unit.r * slope_row(),
            across() + unit.key() / T::kInWord * layout_.across_row, layout_.weight_row, slope_row()};
  }

  // Those of sixteen queries that are not before a key.
  static Lanes after(std::int64_t key, std::int64_t query) {
    if (key <= query) return kAllLanes;
    return static_cast<Lanes>(key - query >= kLanes ? 0 : 0xffffu << (key - query));
  }

  // Where they are not.
  void differentiate_masked(const Unit& unit) {
    const Places to = places(unit);
    for (std::int64_t query = unit.first; query < unit.last; query += kLanes) {
      Vector weight[T::kInWord], slope[T::kInWord];
      for (std::int64_t i = 0; i < T::kInWord; ++i) {
        weight[i] = slope[i] = zero();
        const std::int64_t key = unit.key() + i, at = i * kPanel + query % kPanel;
        if (key == s_.keys) break;
        const Lanes lanes = seen(key, query);
        Lanes kept;
        const Vector t = masked(key, query, lanes, unit.scores + at, &kept) - load(tops() + query);
        weight[i] = npu::keep(lanes, exponential<T>(t - load(logs() + query)));
        slope[i] = npu::keep(kept, weight[i] * (load(unit.through + at) - load(inner() + query)));
      }
      keep(to, query, weight, slope);
    }
  }

  static void keep(const Places& to, std::int64_t query, const Vector (&weight)[T::kInWord],
                   const Vector (&slope)[T::kInWord]) {
    T::store_unit(to.weights + query * kSize<T>, to.weight_row, weight);
    T::store_unit(to.slopes + query * kSize<T>, to.slope_row, to.across + 4 * query, slope);
  }

  const Backward& h_;
  const Shape& s_;
  const BackwardLayout layout_;
  char* const scratch_;
  bool is_plain_ = false;  // and no scores are far
  Ahead ahead_;
};

template <class T>
void run_forward(const Forward& head, const Forward* next, std::int64_t first, std::int64_t last,
                 char* scratch) {
  ForwardHead<T>(head, next, scratch).run(first, last);
}

template <class T>
void run_backward(const Backward& head, const Backward* next, char* scratch) {
  BackwardHead<T>(head, next, scratch).run();
}

}  // namespace

template <Vectors>
ForwardFn forward_for(DType type) {
  if (type == DType::Float32) return run_forward<Float32>;
#ifdef __AVX512BF16__
  if (type == DType::BFloat16) return run_forward<BFloat16>;
#endif
  return nullptr;
}
template ForwardFn forward_for<kVectors>(DType);

template <Vectors>
BackwardFn backward_for(DType type) {
  if (type == DType::Float32) return run_backward<Float32>;
#ifdef __AVX512BF16__
  if (type == DType::BFloat16) return run_backward<BFloat16>;
#endif
  return nullptr;
}
template BackwardFn backward_for<kVectors>(DType);

}  // namespace npu::attention
