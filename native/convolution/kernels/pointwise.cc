// 1x1 convolution.
#include "convolution/pointwise.h"

#include <cstring>

#include "convolution/kernels/elements.h"

namespace npu::convolution {
namespace {

// Register tile: 8 rows of 3 vectors, or 6 rows of one.
constexpr int kMostRows = kTileVectors > 1 ? 8 : 6, kMostWide = kTileVectors > 1 ? 3 : 1;

template <class Value>
struct TileArguments {
  const Value* source;
  std::int64_t source_row, depth;
  const float* weights;
  std::int64_t weight_step;
  const float* bias;  // padded to whole vectors
  const Value* residual;
  Value* target;
  std::int64_t target_row;
  Lanes last_lanes;  // of the last vector
  const Epilogue& epilogue;
};

// `kCount` rows of the source by `kWide` vectors of outputs.
template <class T, Activation kActivation, int kCount, int kWide>
void tile(const TileArguments<typename T::Value>& a) {
  Vector sum[kCount][kWide];
  for (int r = 0; r < kCount; ++r) {
    for (int v = 0; v < kWide; ++v) sum[r][v] = load(a.bias + v * kLanes);
  }
  const float* weights = a.weights;
  const auto* source = a.source;
  for (std::int64_t k = 0; k < a.depth; k += T::kInWord) {
    Vector w[kWide];
#pragma GCC unroll 3
    for (int v = 0; v < kWide; ++v) w[v] = load(weights + v * kLanes);
    weights += a.weight_step;
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      const Vector word = T::splat_word(source + r * a.source_row + k);
#pragma GCC unroll 3
      for (int v = 0; v < kWide; ++v) sum[r][v] = T::multiply(word, w[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kWide; ++v) {
      const std::int64_t at = r * a.target_row + v * kLanes;
      const Lanes lanes = v == kWide - 1 ? a.last_lanes : kAllLanes;
      Vector value = sum[r][v];
      if (a.residual) value = value + T::load(a.residual + at, lanes);
      T::store(a.target + at, lanes, activate<kActivation, kCoarse<T>>(a.epilogue, value));
    }
  }
}

// Rows [0, count) in tiles of kMostRows, 4, 2 and 1.
template <class T, Activation kActivation, int kWide>
void tiles(TileArguments<typename T::Value> a, std::int64_t count) {
  const auto advance = [&](std::int64_t rows) {
    a.source += rows * a.source_row;
    a.target += rows * a.target_row;
    if (a.residual) a.residual += rows * a.target_row;
    count -= rows;
  };
  for (; count >= kMostRows; advance(kMostRows)) tile<T, kActivation, kMostRows, kWide>(a);
  for (; count >= 4; advance(4)) tile<T, kActivation, 4, kWide>(a);
  for (; count >= 2; advance(2)) tile<T, kActivation, 2, kWide>(a);
  for (; count >= 1; advance(1)) tile<T, kActivation, 1, kWide>(a);
}

// Multiplies rows by the gate of their image into a dense buffer.
template <class T>
void gate_rows(const Pointwise& p, const PointwiseData& data, std::int64_t first, std::int64_t last,
               typename T::Value* to) {
  using Value = typename T::Value;
  for (std::int64_t row = first; row < last; ++row) {
    const auto* from = static_cast<const Value*>(data.source) + row * p.source_row;
    const auto* gate = static_cast<const Value*>(data.gate) + row / p.pixels * p.depth;
    for (std::int64_t k = 0; k < p.depth; k += kLanes, to += kLanes) {
      const Lanes lanes = first_lanes(p.depth - k);
      T::store(to, lanes, T::load(from + k, lanes) * T::load(gate + k, lanes));
    }
    to -= (kLanes - p.depth % kLanes) % kLanes;
  }
}

template <class T>
void panel_rows(const Pointwise& p, const PointwiseData& data, const typename T::Value* source,
                std::int64_t source_row, std::int64_t first, std::int64_t count, std::int64_t panel) {
  using Value = typename T::Value;
  const std::int64_t output = panel * kPanel;
  const std::int64_t outputs = p.outputs - output < kPanel ? p.outputs - output : kPanel;
  const std::int64_t vectors = (outputs + kLanes - 1) / kLanes;
  const std::int64_t steps = (p.depth + T::kInWord - 1) / T::kInWord;
  const float* weights = static_cast<const float*>(data.weights) + panel * kPanel * steps;
  alignas(64) float bias[kPanel] = {};
  if (data.bias) std::memcpy(bias, data.bias + output, static_cast<std::size_t>(outputs) * sizeof(float));
  const std::int64_t at = first * p.target_row + output;
  const Value* residual = p.has_residual ? static_cast<const Value*>(data.residual) + at : nullptr;
  Value* target = static_cast<Value*>(data.target) + at;
  for (std::int64_t v = 0; v < vectors; v += kMostWide) {
    const std::int64_t wide = smaller(vectors - v, kMostWide), skip = v * kLanes;
    const TileArguments<Value> arguments{source,
                                         source_row,
                                         p.depth,
                                         weights + skip,
                                         vectors * kLanes,
                                         bias + skip,
                                         residual ? residual + skip : nullptr,
                                         target + skip,
                                         p.target_row,
                                         first_lanes(outputs - (v + wide - 1) * kLanes),
                                         p.epilogue};
    with_activation(p.epilogue, [&]<Activation kActivation>() {
      if constexpr (kMostWide > 1) {
        if (wide == 3) return tiles<T, kActivation, 3>(arguments, count);
        if (wide == 2) return tiles<T, kActivation, 2>(arguments, count);
      }
      tiles<T, kActivation, 1>(arguments, count);
    });
  }
}

template <class T>
void rows(const Pointwise& p, const PointwiseData& data, std::int64_t first, std::int64_t last,
          std::int64_t first_panel, std::int64_t last_panel, char* buffer) {
  using Value = typename T::Value;
  for (std::int64_t row = first; row < last; row += p.chunk) {
    const std::int64_t count = last - row < p.chunk ? last - row : p.chunk;
    const Value* source = static_cast<const Value*>(data.source) + row * p.source_row;
    std::int64_t source_row = p.source_row;
    if (p.has_gate) {
      auto* gated = reinterpret_cast<Value*>(buffer);
      gate_rows<T>(p, data, row, row + count, gated);
      source = gated;
      source_row = p.depth;
    }
    for (std::int64_t panel = first_panel; panel < last_panel; ++panel) {
      panel_rows<T>(p, data, source, source_row, row, count, panel);
    }
  }
}

}  // namespace

template <Vectors>
PointwiseFn pointwise_for(DType type) {
  return for_type(type, []<class T>() -> PointwiseFn { return rows<T>; });
}
template PointwiseFn pointwise_for<kVectors>(DType);

}  // namespace npu::convolution
