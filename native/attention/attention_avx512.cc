// Attention for AVX-512, of float32 and of bfloat16 by pairs.
#include <immintrin.h>

#include <cstring>

#include "attention/layout.h"
#include "product/avx512.h"

namespace npu::attention {
namespace {

using product::exp2_of;
using product::kLog2E;

constexpr float kLn2 = 0.69314718f;
constexpr float kLeast = -200.0f;  // 2 to this power is zero
constexpr float kFar = 256.0f;     // logarithms of sums beyond it are taken apart

// -- numbers
// -------------------------------------------------------------------------------------------------

inline __mmask32 first_halves(std::int64_t count) {
  return count >= 32 ? 0xffffffffu : count <= 0 ? 0 : (1u << count) - 1u;
}

inline void store_words(char* to, __m512 words) { _mm512_storeu_ps(to, words); }

struct Float32 {
  using Value = float;
  static constexpr std::int64_t kInUnit = 1;

  static __m512 multiply(__m512 sum, int unit, __m512 w) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32(unit)), w, sum);
  }
  static __m512 load(const float* from, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
  static void store(float* to, __mmask16 lanes, __m512 value) {
    if (lanes == 0xffff) return _mm512_storeu_ps(to, value);  // a masked store takes several times as long
    _mm512_mask_storeu_ps(to, lanes, value);
  }

  // Sixteen units of up to 16 lines.
  static void load_lines(const float* from, std::int64_t line, std::int64_t lines, std::int64_t depth,
                         __m512 (&to)[16]) {
    const __mmask16 present = first_lanes(depth);
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < 16; ++i) to[i] = load(from + i * line, i < lines ? present : 0);
  }

  // Units of 32 numbers side by side, from the lines that a unit takes.
  static void load_unit(const float* from, std::int64_t, std::int64_t numbers, std::int64_t depth,
                        __m512 (&to)[2]) {
    to[0] = load(from, depth > 0 ? first_lanes(numbers) : 0);
    to[1] = load(from + kLanes, depth > 0 ? first_lanes(numbers - kLanes) : 0);
  }
};

struct BFloat16 {
  using Value = std::uint16_t;
  static constexpr std::int64_t kInUnit = 2;

  static __m512 multiply(__m512 sum, int unit, __m512 w) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(unit)),
                            reinterpret_cast<__m512bh>(w));
  }
  static __m512 load(const std::uint16_t* from, __mmask16 lanes) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from)), 16));
  }
  static void store(std::uint16_t* to, __mmask16 lanes, __m512 value) {
    const auto narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value));
    if (lanes == 0xffff) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow);
    _mm256_mask_storeu_epi16(to, lanes, narrow);
  }

  static void load_lines(const std::uint16_t* from, std::int64_t line, std::int64_t lines, std::int64_t depth,
                         __m512 (&to)[16]) {
    const __mmask32 present = first_halves(depth);
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < 16; ++i) {
      to[i] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(i < lines ? present : 0, from + i * line));
    }
  }

  static void load_unit(const std::uint16_t* from, std::int64_t line, std::int64_t numbers,
                        std::int64_t depth, __m512 (&to)[2]) {
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

// -- packing: panels of 64 columns, unit by unit; what lies outside counts as zero
// ---------------------------------------

template <class T>
const typename T::Value* values_of(const Rows& m) {
  return reinterpret_cast<const typename T::Value*>(m.data);
}

// The transpose of m: its columns are summed over.
template <class T>
void pack_lines(const Rows& m, std::int64_t rows, std::int64_t columns, char* to) {
  const std::int64_t count = units(columns, T::kInUnit);
  for (std::int64_t j = 0; j < rows; j += kPanel, to += 4 * count * kPanel) {
    for (std::int64_t v = 0; v < kPanel; v += kLanes) {
      const typename T::Value* from = values_of<T>(m) + (j + v) * m.row;
      for (std::int64_t u = 0; u < count; u += 16) {
        const std::int64_t at = u * T::kInUnit;
        __m512 lines[16];
        T::load_lines(from + at, m.row, rows - j - v, columns - at, lines);
        transpose(lines);
        const std::int64_t present = smaller(16, count - u);
        for (std::int64_t i = 0; i < present; ++i) store_words(to + 4 * ((u + i) * kPanel + v), lines[i]);
      }
    }
  }
}

// m itself: its rows are summed over.
template <class T>
void pack_columns(const Rows& m, std::int64_t rows, std::int64_t columns, char* to) {
  const std::int64_t count = units(rows, T::kInUnit);
  for (std::int64_t j = 0; j < columns; j += kPanel) {
    for (std::int64_t u = 0; u < count; ++u, to += 4 * kPanel) {
      const std::int64_t row = u * T::kInUnit;
      for (std::int64_t v = 0; v < kPanel; v += 2 * kLanes) {
        __m512 found[2];
        T::load_unit(values_of<T>(m) + row * m.row + j + v, m.row, columns - j - v, rows - row, found);
        store_words(to + 4 * v, found[0]);
        store_words(to + 4 * (v + kLanes), found[1]);
      }
    }
  }
}

// Rows become columns: numbers of `from` row by row, those of `to` unit by unit of 16 and more.
template <class T>
void turn(const char* from, std::int64_t from_row, std::int64_t rows, std::int64_t columns, char* to,
          std::int64_t to_row) {
  const Rows m{const_cast<char*>(from), from_row / static_cast<std::int64_t>(sizeof(typename T::Value))};
  for (std::int64_t c = 0; c < columns; c += 2 * kLanes) {
    for (std::int64_t u = 0; u < units(rows, T::kInUnit); u += 16) {
      __m512 found[2][16];
      for (std::int64_t i = 0; i < 16; ++i) {
        const std::int64_t row = (u + i) * T::kInUnit;
        __m512 both[2];
        T::load_unit(values_of<T>(m) + row * m.row + c, m.row, columns - c, rows - row, both);
        found[0][i] = both[0];
        found[1][i] = both[1];
      }
      for (int half = 0; half < 2; ++half) {
        transpose(found[half]);
#pragma GCC unroll 16
        for (std::int64_t i = 0; i < 16; ++i)
          store_words(to + (c + half * kLanes + i) * to_row + 4 * u, found[half][i]);
      }
    }
  }
}

// -- products
// ------------------------------------------------------------------------------------------------

// Sums of a few rows, `a_row` bytes apart, with one packed panel.
template <class T, int kRows, int kWidth>
void tile(std::int64_t count, const char* a, std::int64_t a_row, const char* b, float* sums,
          std::int64_t sums_row) {
  __m512 sum[kRows][kWidth];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  for (std::int64_t u = 0; u < count; ++u) {
    __m512 w[kWidth];
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) w[v] = _mm512_loadu_ps(b + 4 * (u * kPanel + v * kLanes));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      int unit;
      std::memcpy(&unit, a + r * a_row + 4 * u, sizeof unit);
#pragma GCC unroll 4
      for (int v = 0; v < kWidth; ++v) sum[r][v] = T::multiply(sum[r][v], unit, w[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kWidth; ++v) _mm512_storeu_ps(sums + r * sums_row + v * kLanes, sum[r][v]);
  }
}

using TileFn = void (*)(std::int64_t, const char*, std::int64_t, const char*, float*, std::int64_t);

template <class T, int kWidth>
constexpr TileFn kTilesOf[] = {tile<T, 1, kWidth>, tile<T, 2, kWidth>, tile<T, 3, kWidth>,
                               tile<T, 4, kWidth>, tile<T, 5, kWidth>, tile<T, 6, kWidth>};

template <class T>
TileFn tile_of(std::int64_t rows, std::int64_t columns) {
  constexpr const TileFn* kTiles[] = {kTilesOf<T, 1>, kTilesOf<T, 2>, kTilesOf<T, 3>, kTilesOf<T, 4>};
  return kTiles[divide_up(smaller(columns, kPanel), kLanes) - 1][rows - 1];
}

// Calls body(first, count) for tiles of a like number of rows.
template <class Body>
void each_tile(std::int64_t first, std::int64_t last, Body&& body) {
  for (std::int64_t tiles = divide_up(last - first, kTileRows); tiles > 0; --tiles) {
    const std::int64_t count = divide_up(last - first, tiles);
    body(first, count);
    first += count;
  }
}

// c = a b for a packed b, of numbers like the operands.
template <class T>
void multiply(const char* a, std::int64_t a_row, const char* b, std::int64_t rows, std::int64_t depth,
              std::int64_t columns, const Rows& c, float* sums) {
  const std::int64_t count = units(depth, T::kInUnit);
  for (std::int64_t j = 0; j < columns; j += kPanel, b += 4 * count * kPanel) {
    each_tile(0, rows, [&](std::int64_t first, std::int64_t height) {
      tile_of<T>(height, columns - j)(count, a + first * a_row, a_row, b, sums, kPanel);
      for (std::int64_t r = 0; r < height; ++r) {
        auto* to = reinterpret_cast<typename T::Value*>(c.data) + (first + r) * c.row + j;
        for (std::int64_t v = 0; v < smaller(kPanel, columns - j); v += kLanes) {
          T::store(to + v, first_lanes(columns - j - v), _mm512_loadu_ps(sums + r * kPanel + v));
        }
      }
    });
  }
}

// -- forward
// -------------------------------------------------------------------------------------------------

// The exponential of t <= 0, zero for minus infinity.
inline __m512 exponential(__m512 t) {
  return exp2_of(_mm512_max_ps(splat(kLeast), _mm512_mul_ps(t, splat(kLog2E))));
}

template <class T>
class ForwardHead {
 public:
  ForwardHead(const Forward& head, char* scratch)
      : h_(head), s_(head.shape), layout_(head.shape, T::kInUnit), scratch_(scratch) {}

  void run(std::int64_t first, std::int64_t last) {
    pack_lines<T>(h_.k, s_.keys, s_.depth, scratch_);
    pack_columns<T>(h_.v, s_.keys, s_.width, scratch_ + layout_.values);
    each_tile(first, last, [&](std::int64_t row, std::int64_t rows) { some_queries(row, rows); });
  }

 private:
  float* scores() const { return reinterpret_cast<float*>(scratch_ + layout_.scores); }
  char* weights() const { return scratch_ + layout_.weights; }

  std::int64_t seen_by(std::int64_t query) const { return s_.causal ? smaller(query + 1, s_.keys) : s_.keys; }

  void some_queries(std::int64_t row, std::int64_t rows) {
    const std::int64_t seen = seen_by(row + rows - 1), depth = units(s_.depth, T::kInUnit);
    const auto size = static_cast<std::int64_t>(sizeof(typename T::Value));
    for (std::int64_t j = 0; j < seen; j += kPanel) {
      tile_of<T>(rows, seen - j)(depth, h_.q.data + row * h_.q.row * size, h_.q.row * size,
                                 scratch_ + 4 * j * depth, scores() + j, layout_.score_row);
    }
    float shares[kTileRows];
    for (std::int64_t r = 0; r < rows; ++r) shares[r] = softmax(row + r, r, seen);
    mix(row, rows, seen, shares);
  }

  // The scores of a query, scaled and masked; keys outside of the lanes have minus infinity.
  __m512 masked(const float* scores, std::int64_t query, std::int64_t key, __mmask16 lanes) const {
    __m512 t = _mm512_loadu_ps(scores + key);
    const char* mask = h_.mask.data + query * h_.mask.row;
    if (h_.mask.kind == MaskKind::Added) {
      t = _mm512_fmadd_ps(t, splat(s_.scale), _mm512_maskz_loadu_ps(lanes, mask + 4 * key));
    } else {
      t = _mm512_mul_ps(t, splat(s_.scale));
    }
    if (h_.mask.kind == MaskKind::Kept) {
      const __mmask16 kept = _mm512_mask_test_epi32_mask(
          lanes, _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, mask + key)), _mm512_set1_epi32(0xff));
      t = _mm512_mask_mov_ps(splat(h_.mask.fill), kept, t);
    }
    return _mm512_mask_mov_ps(splat(-__builtin_inff()), lanes, t);
  }

  // Leaves the exponentials of a query's scores, and gives what they are to be multiplied by.
  float softmax(std::int64_t query, std::int64_t r, std::int64_t written) {
    float* row = scores() + r * layout_.score_row;
    const std::int64_t seen = seen_by(query);
    __m512 most = splat(-__builtin_inff());
    for (std::int64_t n = 0; n < written; n += kLanes) {
      const __m512 t = masked(row, query, n, first_lanes(seen - n));
      _mm512_storeu_ps(row + n, t);
      most = _mm512_max_ps(most, t);
    }
    const float top = _mm512_reduce_max_ps(most);
    __m512 total = _mm512_setzero_ps();
    auto* to = reinterpret_cast<typename T::Value*>(weights() + r * layout_.weight_row);
    for (std::int64_t n = 0; n < written; n += kLanes) {
      const __m512 weight = exponential(_mm512_sub_ps(_mm512_loadu_ps(row + n), splat(top)));
      total = _mm512_add_ps(total, weight);
      T::store(to + n, 0xffff, weight);
    }
    const float sum = _mm512_reduce_add_ps(total);
    if (h_.sums) h_.sums[query] = top + __builtin_log2f(sum) * kLn2;
    return 1.0f / sum;
  }

  void mix(std::int64_t row, std::int64_t rows, std::int64_t seen, const float* shares) {
    auto* sums = reinterpret_cast<float*>(scratch_ + layout_.results);
    const std::int64_t count = units(seen, T::kInUnit), all = units(s_.keys, T::kInUnit);
    for (std::int64_t j = 0; j < s_.width; j += kPanel) {
      const char* values = scratch_ + layout_.values + 4 * j * all;
      tile_of<T>(rows, s_.width - j)(count, weights(), layout_.weight_row, values, sums, kPanel);
      for (std::int64_t r = 0; r < rows; ++r) {
        auto* to = reinterpret_cast<typename T::Value*>(h_.y.data) + (row + r) * h_.y.row + j;
        for (std::int64_t v = 0; v < smaller(kPanel, s_.width - j); v += kLanes) {
          const __m512 value = _mm512_mul_ps(_mm512_loadu_ps(sums + r * kPanel + v), splat(shares[r]));
          T::store(to + v, first_lanes(s_.width - j - v), value);
        }
      }
    }
  }

  const Forward& h_;
  const Shape& s_;
  const ForwardLayout layout_;
  char* const scratch_;
};

// -- backward
// ------------------------------------------------------------------------------------------------

// With weights p and y = p v: dv = p' dy, the slopes of scores are p (dy v' - inner), where inner is dy y'
// for each query, and dq = slopes k, dk = slopes' q. Weights and slopes are formed by keys, so that only the
// slopes are turned.
template <class T>
class BackwardHead {
 public:
  BackwardHead(const Backward& head, char* scratch)
      : h_(head), s_(head.shape), layout_(head.shape, T::kInUnit), scratch_(scratch) {}

  void run() {
    measure();
    pack_lines<T>(h_.q, s_.queries, s_.depth, scratch_ + layout_.query_lines);
    pack_lines<T>(h_.dy, s_.queries, s_.width, scratch_ + layout_.gradient_lines);
    for (std::int64_t j = 0; j < s_.queries; j += kPanel) {
      if (is_far(j)) sum_up(j);
    }
    each_tile(0, s_.keys, [&](std::int64_t row, std::int64_t rows) { some_keys(row, rows); });
    char* columns = scratch_ + layout_.columns;
    pack_columns<T>(h_.dy, s_.queries, s_.width, columns);
    multiply<T>(weights(), layout_.weight_row, columns, s_.keys, s_.queries, s_.width, h_.dv, tiles());
    pack_columns<T>(h_.q, s_.queries, s_.depth, columns);
    multiply<T>(slopes(), layout_.weight_row, columns, s_.keys, s_.queries, s_.depth, h_.dk, tiles());
    char* turned = scratch_ + layout_.turned;
    turn<T>(slopes(), layout_.weight_row, s_.keys, s_.queries, turned, layout_.slope_row);
    pack_columns<T>(h_.k, s_.keys, s_.depth, columns);
    multiply<T>(turned, layout_.slope_row, columns, s_.queries, s_.keys, s_.depth, h_.dq, tiles());
  }

 private:
  float* tiles() const { return reinterpret_cast<float*>(scratch_ + layout_.tiles); }
  float* inner() const { return reinterpret_cast<float*>(scratch_ + layout_.inner); }
  float* tops() const { return reinterpret_cast<float*>(scratch_ + layout_.tops); }
  float* logs() const { return reinterpret_cast<float*>(scratch_ + layout_.logs); }
  char* weights() const { return scratch_ + layout_.weights; }
  char* slopes() const { return scratch_ + layout_.slopes; }

  // The inner product of dy and y, and the logarithm of the sum, of each query: a weight is the exponential
  // of its score less the query's top and log.
  void measure() {
    for (std::int64_t i = 0; i < s_.queries; ++i) {
      __m512 total = _mm512_setzero_ps();
      for (std::int64_t v = 0; v < s_.width; v += kLanes) {
        const __mmask16 lanes = first_lanes(s_.width - v);
        total = _mm512_fmadd_ps(T::load(values_of<T>(h_.dy) + i * h_.dy.row + v, lanes),
                                T::load(values_of<T>(h_.y) + i * h_.y.row + v, lanes), total);
      }
      inner()[i] = _mm512_reduce_add_ps(total);
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
    each_tile(0, s_.keys, [&](std::int64_t row, std::int64_t rows) {
      multiply_lines(h_.k, s_.depth, layout_.query_lines, row, rows, panel, tiles());
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t v = 0; v < smaller(kPanel, s_.queries - panel); v += kLanes) {
          const __mmask16 lanes = seen(row + r, panel + v);
          __mmask16 kept;
          const __m512 t = masked(row + r, panel + v, lanes, tiles() + r * kPanel + v, &kept);
          body(_mm512_mask_mov_ps(splat(-__builtin_inff()), lanes, t), panel + v);
        }
      }
    });
  }

  // The largest score of each query of a panel, and the logarithm of the sum of exponentials below it.
  void sum_up(std::int64_t panel) {
    for (std::int64_t v = 0; v < kPanel; v += kLanes) {
      _mm512_storeu_ps(tops() + panel + v, splat(-__builtin_inff()));
      _mm512_storeu_ps(logs() + panel + v, splat(0));
    }
    each_score(panel, [&](__m512 t, std::int64_t query) {
      _mm512_storeu_ps(tops() + query, _mm512_max_ps(_mm512_loadu_ps(tops() + query), t));
    });
    each_score(panel, [&](__m512 t, std::int64_t query) {
      const __m512 weight = exponential(_mm512_sub_ps(t, _mm512_loadu_ps(tops() + query)));
      _mm512_storeu_ps(logs() + query, _mm512_add_ps(_mm512_loadu_ps(logs() + query), weight));
    });
    for (std::int64_t i = panel; i < smaller(panel + kPanel, s_.queries); ++i)
      logs()[i] = __builtin_log2f(logs()[i]) * kLn2;
  }

  // Rows of a matrix times a packed panel of queries.
  void multiply_lines(const Rows& m, std::int64_t columns, std::int64_t packed, std::int64_t row,
                      std::int64_t rows, std::int64_t panel, float* to) const {
    const std::int64_t count = units(columns, T::kInUnit);
    const auto size = static_cast<std::int64_t>(sizeof(typename T::Value));
    tile_of<T>(rows, s_.queries - panel)(count, m.data + row * m.row * size, m.row * size,
                                         scratch_ + packed + 4 * panel * count, to, kPanel);
  }

  // Weights and slopes of some keys for all queries.
  void some_keys(std::int64_t row, std::int64_t rows) {
    float* scores = tiles();
    float* through = tiles() + kTileRows * kPanel;
    for (std::int64_t j = 0; j < s_.queries; j += kPanel) {
      const bool hidden = s_.causal && j + kPanel <= row;  // these queries see none of the keys
      if (!hidden) {
        multiply_lines(h_.k, s_.depth, layout_.query_lines, row, rows, j, scores);
        multiply_lines(h_.v, s_.width, layout_.gradient_lines, row, rows, j, through);
      }
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t v = 0; v < smaller(kPanel, s_.queries - j); v += kLanes) {
          differentiate(row + r, j + v, hidden, scores + r * kPanel + v, through + r * kPanel + v);
        }
      }
    }
  }

  // Those of sixteen queries that are there and see a key.
  __mmask16 seen(std::int64_t key, std::int64_t query) const {
    const __mmask16 lanes = first_lanes(s_.queries - query);
    if (!s_.causal || key <= query) return lanes;
    return lanes & static_cast<__mmask16>(key - query >= kLanes ? 0 : 0xffffu << (key - query));
  }

  // Scaled and masked scores of sixteen queries and one key; `kept` are those that the mask does not hide.
  __m512 masked(std::int64_t key, std::int64_t query, __mmask16 lanes, const float* scores,
                __mmask16* kept) const {
    const __m512 t = _mm512_loadu_ps(scores);
    *kept = lanes;
    if (h_.mask.kind == MaskKind::None) return _mm512_mul_ps(t, splat(s_.scale));
    const char* mask = h_.mask.data + query * h_.mask.row;
    if (h_.mask.kind == MaskKind::Added)
      return _mm512_fmadd_ps(t, splat(s_.scale), added(mask + 4 * key, lanes));
    *kept = lanes & visible(mask + key, query);
    return _mm512_mask_mul_ps(splat(h_.mask.fill), *kept, t, splat(s_.scale));
  }

  __m512 added(const char* mask, __mmask16 lanes) const {
    if (h_.mask.row == 0) {
      float value;
      std::memcpy(&value, mask, sizeof value);
      return splat(value);
    }
    const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(steps, _mm512_set1_epi32(static_cast<int>(h_.mask.row)));
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, at, mask, 1);
  }

  __mmask16 visible(const char* mask, std::int64_t query) const {
    if (h_.mask.row == 0) return *mask ? 0xffff : 0;
    unsigned found = 0;
    const std::int64_t present = smaller(kLanes, s_.queries - query);
    for (std::int64_t i = 0; i < present; ++i) found |= (mask[i * h_.mask.row] != 0 ? 1u : 0u) << i;
    return static_cast<__mmask16>(found);
  }

  // Sixteen queries of one key.
  void differentiate(std::int64_t key, std::int64_t query, bool hidden, const float* scores,
                     const float* through) {
    const __mmask16 lanes = hidden ? 0 : seen(key, query);
    __mmask16 kept;
    const __m512 t = _mm512_sub_ps(masked(key, query, lanes, scores, &kept), _mm512_loadu_ps(tops() + query));
    const __m512 weight =
        _mm512_maskz_mov_ps(lanes, exponential(_mm512_sub_ps(t, _mm512_loadu_ps(logs() + query))));
    const __m512 slope = _mm512_sub_ps(_mm512_loadu_ps(through), _mm512_loadu_ps(inner() + query));
    const std::int64_t at = key * layout_.weight_row;
    const __m512 scaled = _mm512_maskz_mul_ps(kept, _mm512_mul_ps(weight, splat(s_.scale)), slope);
    T::store(reinterpret_cast<typename T::Value*>(weights() + at) + query, 0xffff, weight);
    T::store(reinterpret_cast<typename T::Value*>(slopes() + at) + query, 0xffff, scaled);
  }

  const Backward& h_;
  const Shape& s_;
  const BackwardLayout layout_;
  char* const scratch_;
};

}  // namespace

void forward_float32_avx512(const Forward& head, std::int64_t first, std::int64_t last, char* scratch) {
  ForwardHead<Float32>(head, scratch).run(first, last);
}

void forward_bfloat16_avx512(const Forward& head, std::int64_t first, std::int64_t last, char* scratch) {
  ForwardHead<BFloat16>(head, scratch).run(first, last);
}

void backward_float32_avx512(const Backward& head, char* scratch) {
  BackwardHead<Float32>(head, scratch).run();
}

void backward_bfloat16_avx512(const Backward& head, char* scratch) {
  BackwardHead<BFloat16>(head, scratch).run();
}

}  // namespace npu::attention
