// LSTM steps in training.
#include "recurrent/training.h"

#include "recurrent/kernels/activations.h"
#include "recurrent/lstm.h"

namespace npu::recurrent {
namespace {

constexpr std::int64_t kMostRows =
    6;                      // of a tile: 24 sums of 4 vectors, 4 weights and a factor fill the registers
constexpr int kPanels = 4;  // of a tile

// A word of each of 16 columns, from as many rows as a word takes.
inline Vector word_of_rows(const float* from, std::int64_t) { return load(from); }
#ifdef __AVX512BF16__
inline Vector word_of_rows(const std::uint16_t* from, std::int64_t stride) {
  const __m512i below = _mm512_slli_epi32(BFloat16::wide(from + stride), 16);
  return _mm512_castsi512_ps(_mm512_or_si512(BFloat16::wide(from), below));
}
#endif

inline const float* words(const void* data) { return static_cast<const float*>(data); }

// sum += a w: rows of a with `depth` words each, kWide panels of w that begin `stride` words apart.
template <class T, int kRows, int kWide>
[[gnu::always_inline]] inline void multiply(Vector (&sum)[kRows][kWide], const float* a, const float* w,
                                            std::int64_t depth, std::int64_t stride) {
  constexpr int kTogether = kWide < kTileVectors ? kWide : kTileVectors;
#pragma GCC unroll 4
  for (int first = 0; first < kWide; first += kTogether, w += kTogether * stride) {
    Vector some[kRows][kTogether];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kTogether; ++v) some[r][v] = sum[r][first + v];
    }
    for (std::int64_t k = 0; k < depth; ++k) {
      Vector weights[kTogether];
#pragma GCC unroll 4
      for (int v = 0; v < kTogether; ++v) weights[v] = load(w + v * stride + k * kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const Vector factor = splat(a[r * depth + k]);
#pragma GCC unroll 4
        for (int v = 0; v < kTogether; ++v) some[r][v] = T::multiply(factor, weights[v], some[r][v]);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kTogether; ++v) sum[r][first + v] = some[r][v];
    }
  }
}

template <class T>
void keep(const ForwardStep& s, std::int64_t row, std::int64_t unit, const Vector (&gates)[kGates]) {
  using Element = typename T::Value;
  const std::int64_t at = row * s.hidden + unit;
  const Vector i = sigmoid(gates[0]), f = sigmoid(gates[1]), g = tangent(gates[2]), o = sigmoid(gates[3]);
  const Vector before = load(s.c + at);
  const Vector c = fma(i, g, f * before);
  const Vector h = o * tangent(c);
  store(s.c + at, c);
  store(s.h + at, h);
  T::store(static_cast<Element*>(s.y) + at, kAllLanes, h);
  Element* const kept = static_cast<Element*>(s.kept) + row * kKept * s.hidden + unit;
  const Vector values[kKept] = {i, f, g, o, before};
#pragma GCC unroll 5
  for (int v = 0; v < kKept; ++v) T::store(kept + v * s.hidden, kAllLanes, values[v]);
}

template <class T, int kRows>
void forward_tile(const ForwardStep& s, std::int64_t row, std::int64_t block) {
  const std::int64_t unit = block * kLanes, depth = s.hidden / T::kInWord;
  Vector sum[kRows][kGates];
  for (int r = 0; r < kRows; ++r) {
    for (int g = 0; g < kGates; ++g) {
      sum[r][g] = load(s.gates + ((row + r) * kGates + g) * s.hidden + unit);
    }
  }
  multiply<T>(sum, words(s.before) + row * depth, words(s.weights) + unit * depth, depth, s.hidden * depth);
  for (int r = 0; r < kRows; ++r) keep<T>(s, row + r, unit, sum[r]);
}

// Gradients of a step's gates for 16 units, from that of its state.
template <class T>
void differentiate(const BackStep& s, std::int64_t row, std::int64_t unit, Vector dh) {
  using Element = typename T::Value;
  const std::int64_t at = row * s.hidden + unit;
  const Element* const kept = static_cast<const Element*>(s.kept) + row * kKept * s.hidden + unit;
  Vector values[kKept];
#pragma GCC unroll 5
  for (int v = 0; v < kKept; ++v) values[v] = T::load(kept + v * s.hidden);
  const auto [i, f, g, o, c] = values;
  if (s.dy) dh = dh + T::load(static_cast<const Element*>(s.dy) + at);
  const Vector one = splat(1.0f);
  const Vector bent = tangent(fma(i, g, f * c));
  const Vector slope = fnma(bent, bent, one);
  const Vector dc = fma(dh * o, slope, load(s.dc + at));
  const auto of_sigmoid = [&](Vector x, Vector factor, Vector y) { return x * factor * fnma(y, y, y); };
  const Vector gates[kGates] = {
      of_sigmoid(dc, g, i),
      of_sigmoid(dc, c, f),
      dc * i * fnma(g, g, one),
      of_sigmoid(dh, bent, o),
  };
  Element* const to = static_cast<Element*>(s.gates) + row * kGates * s.hidden + unit;
#pragma GCC unroll 4
  for (int v = 0; v < kGates; ++v) T::store(to + v * s.hidden, kAllLanes, gates[v]);
  store(s.dc + at, dc * f);
}

template <class T, int kRows, int kWide>
void back_tile(const BackStep& s, std::int64_t row, std::int64_t block) {
  const std::int64_t depth = kGates * s.hidden / T::kInWord, stride = depth * kLanes;
  Vector sum[kRows][kWide];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) {
      const float* const given = s.dh + (row + r) * s.hidden + (block + v) * kLanes;
      sum[r][v] = s.after ? zero() : load(given);
    }
  }
  if (s.after) {
    multiply<T>(sum, words(s.after) + row * depth, words(s.weights) + block * stride, depth, stride);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kWide; ++v) {
      const std::int64_t unit = (block + v) * kLanes;
      if (s.kept) {
        differentiate<T>(s, row + r, unit, sum[r][v]);
      } else {
        store(s.dh + (row + r) * s.hidden + unit, sum[r][v]);
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

template <class T, int kWide>
void back_blocks(const BackStep& s, std::int64_t block) {
  using Tile = void (*)(const BackStep&, std::int64_t row, std::int64_t block);
  static constexpr Tile kTiles[kMostRows] = {back_tile<T, 1, kWide>, back_tile<T, 2, kWide>,
                                             back_tile<T, 3, kWide>, back_tile<T, 4, kWide>,
                                             back_tile<T, 5, kWide>, back_tile<T, 6, kWide>};
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
  const std::int64_t depth = hidden / T::kInWord;
  for (std::int64_t g = 0; g < kGates; ++g) {
    const std::int64_t begin = (g * hidden + first * kLanes) * depth;
    const float* from = words(weights) + begin;
    float* to = static_cast<float*>(packed) + begin;
    for (std::int64_t block = first; block < last; ++block, from += kLanes * depth, to += kLanes * depth) {
      for (std::int64_t k = 0; k < depth; k += kLanes) {
        const Lanes lanes = first_lanes(depth - k);
        Vector tile[kLanes];
#pragma GCC unroll 16
        for (int r = 0; r < kLanes; ++r) tile[r] = load(from + r * depth + k, lanes);
        transpose(tile);
        const std::int64_t rows = smaller(kLanes, depth - k);
        for (std::int64_t r = 0; r < rows; ++r) store(to + (k + r) * kLanes, tile[r]);
      }
    }
  }
}

// The panels of the weights as they are; rows are read whole, so that memory comes in order.
template <class T>
void pack_back(const void* weights, std::int64_t hidden, void* packed, std::int64_t first,
               std::int64_t last) {
  const auto* from = static_cast<const typename T::Value*>(weights);
  const std::int64_t depth = kGates * hidden / T::kInWord;
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t block = first; block < last; ++block) {
      const Vector word = word_of_rows(from + k * T::kInWord * hidden + block * kLanes, hidden);
      store(static_cast<float*>(packed) + (block * depth + k) * kLanes, word);
    }
  }
}

template <class T>
constexpr TrainingKernels kKernels = {forward<T>, back<T>, pack_forward<T>, pack_back<T>};

}  // namespace

template <Vectors>
const TrainingKernels* training_kernels_for(DType weights) {
  return for_type(weights, []<class T>() { return &kKernels<T>; });
}
template const TrainingKernels* training_kernels_for<kVectors>(DType);

}  // namespace npu::recurrent
