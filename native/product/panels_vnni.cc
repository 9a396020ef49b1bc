// Products with weights in panels for AVX-512 with dot products of bytes.
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "product/panels.h"

namespace npu::product {
namespace {  // files with other instructions must not have code in common with this one

struct Narrow {
  std::uint16_t bits;
};

// Between these are the largest elements of blocks that have a factor: sums then neither vanish nor overflow
// before they are multiplied by the factors of weights.
constexpr float kLeast = 1e-30f, kMost = 1e30f;

inline __m512 load_some(const float* from, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
inline __m512 load_some(const Narrow* from, __mmask16 lanes) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
inline float wide(float value) { return value; }
inline float wide(Narrow value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

inline void store_some(float* to, __mmask16 lanes, __m512 value) { _mm512_mask_storeu_ps(to, lanes, value); }
inline void store_some(Narrow* to, __mmask16 lanes, __m512 value) {  // to nearest even; NaN stays NaN
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_mask_storeu_epi16(to, lanes, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

inline __mmask16 lanes_of(std::int64_t left) {
  return static_cast<__mmask16>(left >= 16 ? 0xffff : left > 0 ? (1u << left) - 1u : 0u);
}

// Rows that pass over a panel together: their sums stay in registers.
constexpr int most_rows(int digits) { return digits == 1 ? 12 : digits == 2 ? 8 : 6; }

constexpr float largest(int digits) {
  return digits == 1 ? 127.0f : digits == 2 ? 127.0f * 256 : 127.0f * 65536;
}

// The rows of a chunk: chunks differ by one row at most.
struct Chunks {
  std::int64_t rows, count;

  explicit Chunks(const PanelProblem& p)
      : rows(p.rows), count((p.rows + most_rows(p.digits) - 1) / most_rows(p.digits)) {}
  std::int64_t first(std::int64_t chunk) const { return rows * chunk / count; }
};

inline std::uint32_t* numbers_of(const PanelProblem& p, std::uint32_t* prepared, std::int64_t row) {
  return prepared + (p.rows + 15) / 16 * 16 + row * p.words_of_row();
}
inline const std::uint32_t* numbers_of(const PanelProblem& p, const std::uint32_t* prepared,
                                       std::int64_t row) {
  return numbers_of(p, const_cast<std::uint32_t*>(prepared), row);
}

// -- x
// --------------------------------------------------------------------------------------------------------

// One block of a row, its words `stride` apart; false where an element is no number or all of them are too
// small.
template <int kDigits, class T>
bool fix_block(const T* x, std::int64_t count, const PanelProblem& p, std::uint32_t* to,
               std::int64_t stride) {
  constexpr float kLargest = largest(kDigits);
  __m512i most{};
  for (std::int64_t k = 0; k < count; k += 16) {
    const __m512 values = load_some(x + k, lanes_of(count - k));
    most =
        _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fffffff)));
  }
  const std::int32_t bits = _mm512_reduce_max_epi32(most);
  float magnitude;
  std::memcpy(&magnitude, &bits, sizeof magnitude);
  if (bits != 0 && !(magnitude >= kLeast && magnitude <= kMost)) return false;
  const __m512 inverse = _mm512_set1_ps(bits ? kLargest / magnitude : 0.0f);
  __m512i sums[kDigits] = {};
  for (std::int64_t k = 0; k < p.block; k += 16) {
    const __m512 values = load_some(x + (k < count ? k : 0), lanes_of(count - k));
    __m512i number = _mm512_cvtps_epi32(_mm512_mul_ps(values, inverse));
    const std::int64_t quads = p.block - k < 16 ? (p.block - k) / 4 : 4;
    for (int d = kDigits - 1; d >= 0; --d) {
      const __m512i digit = _mm512_srai_epi32(_mm512_slli_epi32(number, 24), 24);
      number = _mm512_srai_epi32(_mm512_sub_epi32(number, digit), 8);
      sums[d] = _mm512_add_epi32(sums[d], digit);
      alignas(16) std::uint32_t words[4];
      _mm_store_si128(reinterpret_cast<__m128i*>(words), _mm512_cvtepi32_epi8(digit));
      for (std::int64_t q = 0; q < quads; ++q) to[((k / 4 + q) * kDigits + d) * stride] = words[q];
    }
  }
  std::uint32_t* next = to + p.block / 4 * kDigits * stride;
  const std::int32_t middle = 1 << (p.bits - 1);
  float total = 0;
  for (int d = 0; d < kDigits; ++d, next += stride) {
    const std::int32_t sum = _mm512_reduce_add_epi32(sums[d]);
    *next = static_cast<std::uint32_t>(-middle * sum);
    total = total * 256.0f + static_cast<float>(sum);
  }
  const float factor = magnitude / kLargest;
  total *= factor;
  std::memcpy(next, &factor, sizeof factor);
  std::memcpy(next + stride, &total, sizeof total);
  return true;
}

template <int kDigits, class T>
void prepare(const PanelProblem& p, const T* x, std::int64_t first, std::int64_t last,
             std::uint32_t* prepared) {
  const Chunks chunks(p);
  const std::int64_t block_words = p.block / 4 * kDigits + kDigits + 2;
  for (std::int64_t chunk = first; chunk < last; ++chunk) {
    const std::int64_t begin = chunks.first(chunk), rows = chunks.first(chunk + 1) - begin;
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* const row = x + (begin + r) * p.depth;
      std::uint32_t* to = numbers_of(p, prepared, begin) + r;
      bool fixed = true;
      for (std::int64_t k = 0; k < p.depth && fixed; k += p.block, to += block_words * rows) {
        fixed = fix_block<kDigits>(row + k, p.depth - k < p.block ? p.depth - k : p.block, p, to, rows);
      }
      prepared[begin + r] = fixed;
    }
  }
}

// -- products
// ---------------------------------------------------------------------------------------------------

// The factors of a panel, group by group.
class Factors {
 public:
  Factors(const PanelProblem& p, const char* packed, std::int64_t panel)
      : is_half_(packed && packed[0] != 0) {
    at_ = packed ? packed + 64 + panel * p.groups * kPanelColumns * (is_half_ ? 2 : 4) : nullptr;
  }
  __m512 next() {
    if (is_half_) {
      const __m512 found = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at_)));
      at_ += 2 * kPanelColumns;
      return found;
    }
    const __m512 found = _mm512_loadu_ps(at_);
    at_ += 4 * kPanelColumns;
    return found;
  }

 private:
  bool is_half_;
  const char* at_;
};

inline __m512i word(const std::uint32_t* from) { return _mm512_set1_epi32(static_cast<int>(*from)); }
inline __m512 number(const std::uint32_t* from) { return _mm512_castsi512_ps(word(from)); }

template <int kDigits>
inline __m512 joined(const __m512i (&sums)[kDigits]) {
  if constexpr (kDigits == 1) {
    return _mm512_cvtepi32_ps(sums[0]);
  } else {
    const __m512 high = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(sums[0], 8), sums[1]));
    if constexpr (kDigits == 2) return high;
    return _mm512_fmadd_ps(high, _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(sums[kDigits - 1]));
  }
}

template <int kDigits, int kRows>
inline void add_quad(__m512i levels, const std::uint32_t* x, __m512i (&sums)[kRows][kDigits]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int d = 0; d < kDigits; ++d)
      sums[r][d] = _mm512_dpbusd_epi32(sums[r][d], levels, word(x + d * kRows + r));
  }
}

template <int kBits, int kDigits, class T, int kRows>
void multiply_chunk(const PanelProblem& p, const PanelOperands& o, const std::uint32_t* x, std::int64_t row,
                    std::int64_t panel) {
  const std::int64_t blocks = p.blocks(), units = p.block * kBits / 32;
  const std::int64_t in_group = p.groups == 1 ? blocks : p.group / p.block;
  const char* weights = o.weights + panel * blocks * p.block_bytes();
  Factors scales(p, o.scales, panel), zeros(p, o.zeros, panel);
  const __m512i low = _mm512_set1_epi8(15);
  __m512 total[kRows] = {}, scale{}, zero{};
  std::int64_t left = 0;
  for (std::int64_t block = 0; block < blocks; ++block) {
    if (left-- == 0) {
      left = in_group - 1;
      scale = scales.next();
      if (o.zeros) zero = _mm512_mul_ps(scale, zeros.next());
    }
    __m512i sums[kRows][kDigits];
    const std::uint32_t* const after = x + p.block / 4 * kDigits * kRows;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
      for (int d = 0; d < kDigits; ++d) sums[r][d] = word(after + d * kRows + r);
    }
    for (std::int64_t unit = 0; unit < units; ++unit, weights += 64) {
      const __m512i bits = _mm512_loadu_si512(weights);
      if constexpr (kRows <= 2) __builtin_prefetch(weights + 2048);
      if constexpr (kBits == 8) {
        add_quad<kDigits, kRows>(bits, x, sums);
        x += kDigits * kRows;
      } else {
        add_quad<kDigits, kRows>(_mm512_and_si512(bits, low), x, sums);
        add_quad<kDigits, kRows>(_mm512_and_si512(_mm512_srli_epi16(bits, 4), low), x + kDigits * kRows,
                                 sums);
        x += 2 * kDigits * kRows;
      }
    }
    x += kDigits * kRows;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512 found = _mm512_mul_ps(joined<kDigits>(sums[r]), number(x + r));
      total[r] = _mm512_fmadd_ps(found, scale, total[r]);
      if (o.zeros) total[r] = _mm512_fnmadd_ps(zero, number(x + kRows + r), total[r]);
    }
    x += 2 * kRows;
  }
  const std::int64_t column = panel * kPanelColumns;
  const __mmask16 lanes = lanes_of(p.columns - column);
  const __m512 bias = o.bias ? load_some(static_cast<const T*>(o.bias) + column, lanes) : __m512{};
  T* const y = static_cast<T*>(o.y) + row * p.columns + column;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) store_some(y + r * p.columns, lanes, _mm512_add_ps(total[r], bias));
}

// A row that has not become fixed-point numbers.
template <int kBits, class T>
void multiply_floats(const PanelProblem& p, const PanelOperands& o, std::int64_t row, std::int64_t panel) {
  const T* const x = static_cast<const T*>(o.x) + row * p.depth;
  const char* weights = o.weights + panel * p.blocks() * p.block_bytes();
  Factors scales(p, o.scales, panel), zeros(p, o.zeros, panel);
  constexpr int kPerLane = 32 / kBits, kMask = (1 << kBits) - 1;
  const __m512 middle = _mm512_set1_ps(static_cast<float>(1 << (kBits - 1)));
  __m512 total{}, scale{}, zero{};
  for (std::int64_t k = 0; k < p.depth; k += kPerLane, weights += 64) {
    if (k % p.group == 0) {
      scale = scales.next();
      zero = _mm512_add_ps(middle, o.zeros ? zeros.next() : __m512{});
    }
    const __m512i bits = _mm512_loadu_si512(weights);
    for (int j = 0; j < kPerLane && k + j < p.depth; ++j) {
      const unsigned shift = static_cast<unsigned>(kBits == 8 ? 8 * j : 8 * (j % 4) + j / 4 * 4);
      const __m512i level = _mm512_and_si512(_mm512_srli_epi32(bits, shift), _mm512_set1_epi32(kMask));
      const __m512 weight = _mm512_mul_ps(_mm512_sub_ps(_mm512_cvtepi32_ps(level), zero), scale);
      total = _mm512_fmadd_ps(weight, _mm512_set1_ps(wide(x[k + j])), total);
    }
  }
  const std::int64_t column = panel * kPanelColumns;
  const __mmask16 lanes = lanes_of(p.columns - column);
  if (o.bias) total = _mm512_add_ps(total, load_some(static_cast<const T*>(o.bias) + column, lanes));
  store_some(static_cast<T*>(o.y) + row * p.columns + column, lanes, total);
}

template <int kBits, int kDigits, class T, int kRows = most_rows(kDigits)>
void multiply_rows(const PanelProblem& p, const PanelOperands& o, const std::uint32_t* x, std::int64_t rows,
                   std::int64_t row, std::int64_t panel) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply_rows<kBits, kDigits, T, kRows - 1>(p, o, x, rows, row, panel);
  }
  multiply_chunk<kBits, kDigits, T, kRows>(p, o, x, row, panel);
}

template <int kBits, int kDigits, class T>
void multiply(const PanelProblem& p, const PanelOperands& o, const std::uint32_t* prepared,
              std::int64_t first, std::int64_t last) {
  const Chunks chunks(p);
  for (std::int64_t panel = first; panel < last; ++panel) {
    for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) {
      const std::int64_t row = chunks.first(chunk), rows = chunks.first(chunk + 1) - row;
      multiply_rows<kBits, kDigits, T>(p, o, numbers_of(p, prepared, row), rows, row, panel);
    }
    for (std::int64_t row = 0; row < p.rows; ++row) {
      if (prepared[row] == 0) multiply_floats<kBits, T>(p, o, row, panel);
    }
  }
}

// Calls a function with the number of digits and the type of x as template arguments.
template <class Body>
void by_type(const PanelProblem& p, Body&& body) {
  const auto with_digits = [&](auto type) {
    if (p.digits == 1) {
      body(std::integral_constant<int, 1>{}, type);
    } else if constexpr (std::is_same_v<decltype(type), float>) {
      body(std::integral_constant<int, 3>{}, type);
    } else {
      body(std::integral_constant<int, 2>{}, type);
    }
  };
  if (p.type == DType::Float32) {
    with_digits(float{});
  } else {
    with_digits(Narrow{});
  }
}

void prepare_of(const PanelProblem& p, const void* x, std::int64_t first, std::int64_t last,
                std::uint32_t* prepared) {
  by_type(p, [&]<int kDigits, class T>(std::integral_constant<int, kDigits>, T) {
    prepare<kDigits>(p, static_cast<const T*>(x), first, last, prepared);
  });
}

void multiply_of(const PanelProblem& p, const PanelOperands& o, const std::uint32_t* prepared,
                 std::int64_t first, std::int64_t last) {
  by_type(p, [&]<int kDigits, class T>(std::integral_constant<int, kDigits>, T) {
    if (p.bits == 4) {
      multiply<4, kDigits, T>(p, o, prepared, first, last);
    } else {
      multiply<8, kDigits, T>(p, o, prepared, first, last);
    }
  });
}

std::int64_t chunks_of(const PanelProblem& p) { return Chunks(p).count; }

}  // namespace

extern const PanelKernels kPanelsVnni = {chunks_of, prepare_of, multiply_of};

}  // namespace npu::product
