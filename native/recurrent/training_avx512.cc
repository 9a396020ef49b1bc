// LSTM steps in training for AVX-512, with its bfloat16 products where the weights are bfloat16.
#include "recurrent/activations_avx512.h"
#include "recurrent/lstm.h"
#include "recurrent/training.h"

namespace npu::recurrent {
namespace {

constexpr std::int64_t kMostRows = 6;  // of a tile: 24 sums, 4 weights and a factor fill the registers
constexpr int kPanels = 4;             // of a tile

// Words of 32 bits are what products take: a float32, or two bfloat16 along the depth.
struct Float32 {
  using Element = float;
  static constexpr std::int64_t kDepth = 1;  // elements of a word

  static __m512 load(const Element* from) { return _mm512_loadu_ps(from); }
  static void store(Element* to, __m512 x) { _mm512_storeu_ps(to, x); }
  static __m512 product(__m512 factor, __m512 weights, __m512 sum) {
    return _mm512_fmadd_ps(factor, weights, sum);
  }
  static __m512 word_of_rows(const Element* from, std::int64_t) { return load(from); }
};

struct BFloat16 {
  using Element = std::uint16_t;
  static constexpr std::int64_t kDepth = 2;

  static __m512i wide(const Element* from) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static __m512 load(const Element* from) { return _mm512_castsi512_ps(_mm512_slli_epi32(wide(from), 16)); }
  static void store(Element* to, __m512 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }
  static __m512 product(__m512 factor, __m512 weights, __m512 sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(factor), reinterpret_cast<__m512bh>(weights));
  }
  // 16 elements of a row and those below them.
  static __m512 word_of_rows(const Element* from, std::int64_t stride) {
    return _mm512_castsi512_ps(_mm512_or_si512(wide(from), _mm512_slli_epi32(wide(from + stride), 16)));
  }
};

inline const float* words(const void* data) { return static_cast<const float*>(data); }

// sum += a w: rows of a with `depth` words each, kVectors panels of w that begin `stride` words apart.
template <class T, int kRows, int kVectors>
[[gnu::always_inline]] inline void multiply(__m512 (&sum)[kRows][kVectors], const float* a, const float* w,
                                            std::int64_t depth, std::int64_t stride) {
  for (std::int64_t k = 0; k < depth; ++k) {
    __m512 weights[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) weights[v] = _mm512_loadu_ps(w + v * stride + k * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const __m512 factor = splat(a[r * depth + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = T::product(factor, weights[v], sum[r][v]);
    }
  }
}

template <class T>
void keep(const ForwardStep& s, std::int64_t row, std::int64_t unit, const __m512 (&gates)[kGates]) {
  using Element = typename T::Element;
  const std::int64_t at = row * s.hidden + unit;
  const __m512 i = sigmoid(gates[0]), f = sigmoid(gates[1]), g = tangent(gates[2]), o = sigmoid(gates[3]);
  const __m512 before = _mm512_loadu_ps(s.c + at);
  const __m512 c = _mm512_fmadd_ps(i, g, _mm512_mul_ps(f, before));
  const __m512 h = _mm512_mul_ps(o, tangent(c));
  _mm512_storeu_ps(s.c + at, c);
  _mm512_storeu_ps(s.h + at, h);
  T::store(static_cast<Element*>(s.y) + at, h);
  Element* const kept = static_cast<Element*>(s.kept) + row * kKept * s.hidden + unit;
  const __m512 values[kKept] = {i, f, g, o, before};
#pragma GCC unroll 5
  for (int v = 0; v < kKept; ++v) T::store(kept + v * s.hidden, values[v]);
}

template <class T, int kRows>
void forward_tile(const ForwardStep& s, std::int64_t row, std::int64_t block) {
  const std::int64_t unit = block * kLanes, depth = s.hidden / T::kDepth;
  __m512 sum[kRows][kGates];
  for (int r = 0; r < kRows; ++r) {
    for (int g = 0; g < kGates; ++g) {
      sum[r][g] = _mm512_loadu_ps(s.gates + ((row + r) * kGates + g) * s.hidden + unit);
    }
  }
  multiply<T>(sum, words(s.before) + row * depth, words(s.weights) + unit * depth, depth, s.hidden * depth);
  for (int r = 0; r < kRows; ++r) keep<T>(s, row + r, unit, sum[r]);
}

// The gradients of a step's gates at 16 units, from that of its state.
template <class T>
void differentiate(const BackStep& s, std::int64_t row, std::int64_t unit, __m512 dh) {
  using Element = typename T::Element;
  const std::int64_t at = row * s.hidden + unit;
  const Element* const kept = static_cast<const Element*>(s.kept) + row * kKept * s.hidden + unit;
  __m512 values[kKept];
#pragma GCC unroll 5
  for (int v = 0; v < kKept; ++v) values[v] = T::load(kept + v * s.hidden);
  const auto [i, f, g, o, c] = values;
  if (s.dy) dh = _mm512_add_ps(dh, T::load(static_cast<const Element*>(s.dy) + at));
  const __m512 one = splat(1.0f);
  const __m512 bent = tangent(_mm512_fmadd_ps(i, g, _mm512_mul_ps(f, c)));
  const __m512 slope = _mm512_fnmadd_ps(bent, bent, one);
  const __m512 dc = _mm512_fmadd_ps(_mm512_mul_ps(dh, o), slope, _mm512_loadu_ps(s.dc + at));
  const auto of_sigmoid = [&](__m512 x, __m512 factor, __m512 y) {
    return _mm512_mul_ps(_mm512_mul_ps(x, factor), _mm512_fnmadd_ps(y, y, y));
  };
  const __m512 gates[kGates] = {
      of_sigmoid(dc, g, i),
      of_sigmoid(dc, c, f),
      _mm512_mul_ps(_mm512_mul_ps(dc, i), _mm512_fnmadd_ps(g, g, one)),
      of_sigmoid(dh, bent, o),
  };
  Element* const to = static_cast<Element*>(s.gates) + row * kGates * s.hidden + unit;
#pragma GCC unroll 4
  for (int v = 0; v < kGates; ++v) T::store(to + v * s.hidden, gates[v]);
  _mm512_storeu_ps(s.dc + at, _mm512_mul_ps(dc, f));
}

template <class T, int kRows, int kVectors>
void back_tile(const BackStep& s, std::int64_t row, std::int64_t block) {
  const std::int64_t depth = kGates * s.hidden / T::kDepth, stride = depth * kLanes;
  __m512 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      const float* const given = s.dh + (row + r) * s.hidden + (block + v) * kLanes;
      sum[r][v] = s.after ? _mm512_setzero_ps() : _mm512_loadu_ps(given);
    }
  }
  if (s.after) {
    multiply<T>(sum, words(s.after) + row * depth, words(s.weights) + block * stride, depth, stride);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t unit = (block + v) * kLanes;
      if (s.kept) {
        differentiate<T>(s, row + r, unit, sum[r][v]);
      } else {
        _mm512_storeu_ps(s.dh + (row + r) * s.hidden + unit, sum[r][v]);
      }
    }
  }
}

// Calls tile(rows, row) for tiles of nearly equal numbers of rows.
template <class Tile>
void over_rows(std::int64_t batch, Tile&& tile) {
  const std::int64_t tiles = (batch + kMostRows - 1) / kMostRows;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int64_t row = batch * t / tiles;
    tile(batch * (t + 1) / tiles - row, row);
  }
}

template <class T>
void forward(const ForwardStep& s, std::int64_t first, std::int64_t last, bool backwards) {
  using Tile = void (*)(const ForwardStep&, std::int64_t row, std::int64_t block);
  static constexpr Tile kTiles[kMostRows] = {forward_tile<T, 1>, forward_tile<T, 2>, forward_tile<T, 3>,
                                             forward_tile<T, 4>, forward_tile<T, 5>, forward_tile<T, 6>};
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t block = backwards ? first + last - 1 - i : i;
    over_rows(s.batch, [&](std::int64_t rows, std::int64_t row) { kTiles[rows - 1](s, row, block); });
  }
}

template <class T, int kVectors>
void back_blocks(const BackStep& s, std::int64_t block) {
  using Tile = void (*)(const BackStep&, std::int64_t row, std::int64_t block);
  static constexpr Tile kTiles[kMostRows] = {back_tile<T, 1, kVectors>, back_tile<T, 2, kVectors>,
                                             back_tile<T, 3, kVectors>, back_tile<T, 4, kVectors>,
                                             back_tile<T, 5, kVectors>, back_tile<T, 6, kVectors>};
  over_rows(s.batch, [&](std::int64_t rows, std::int64_t row) { kTiles[rows - 1](s, row, block); });
}

template <class T>
void back(const BackStep& s, std::int64_t first, std::int64_t last, bool backwards) {
  const std::int64_t tiles = (last - first) / kPanels;
  for (std::int64_t i = 0; i < tiles; ++i) {
    back_blocks<T, kPanels>(s, first + (backwards ? tiles - 1 - i : i) * kPanels);
  }
  for (std::int64_t block = first + tiles * kPanels; block < last; ++block) back_blocks<T, 1>(s, block);
}

// The panels of the four gates of a block: 16 rows of the weights, turned word by word.
template <class T>
void pack_forward(const void* weights, std::int64_t hidden, void* packed, std::int64_t first,
                  std::int64_t last) {
  const std::int64_t depth = hidden / T::kDepth;
  for (std::int64_t g = 0; g < kGates; ++g) {
    const std::int64_t begin = (g * hidden + first * kLanes) * depth;
    const float* from = words(weights) + begin;
    float* to = static_cast<float*>(packed) + begin;
    for (std::int64_t block = first; block < last; ++block, from += kLanes * depth, to += kLanes * depth) {
      for (std::int64_t k = 0; k < depth; k += kLanes) {
        const __mmask16 lanes = first_lanes(depth - k);
        __m512 tile[kLanes];
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) tile[r] = _mm512_maskz_loadu_ps(lanes, from + r * depth + k);
        transpose(tile);
        const std::int64_t rows = smaller(kLanes, depth - k);
        for (std::int64_t r = 0; r < rows; ++r) _mm512_storeu_ps(to + (k + r) * kLanes, tile[r]);
      }
    }
  }
}

// The panels of the weights as they are; rows are read whole, so that memory comes in order.
template <class T>
void pack_back(const void* weights, std::int64_t hidden, void* packed, std::int64_t first,
               std::int64_t last) {
  const auto* from = static_cast<const typename T::Element*>(weights);
  const std::int64_t depth = kGates * hidden / T::kDepth;
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t block = first; block < last; ++block) {
      const __m512 word = T::word_of_rows(from + k * T::kDepth * hidden + block * kLanes, hidden);
      _mm512_storeu_ps(static_cast<float*>(packed) + (block * depth + k) * kLanes, word);
    }
  }
}

template <class T>
constexpr TrainingKernels kKernels = {forward<T>, back<T>, pack_forward<T>, pack_back<T>};

}  // namespace

const TrainingKernels* training_float32_avx512() { return &kKernels<Float32>; }
const TrainingKernels* training_bfloat16_avx512() { return &kKernels<BFloat16>; }

}  // namespace npu::recurrent
