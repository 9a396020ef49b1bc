// 1x1 convolution for AVX-512, with its bfloat16 products.
#include <cstring>

#include "convolution/avx512.h"
#include "convolution/pointwise.h"

namespace npu::convolution {
namespace {

// How a product takes `kDepth` values of the source at once.
struct Float32Product {
  using Type = Float32;
  static constexpr std::int64_t kDepth = 1;
  static __m512 multiply(const float* source, __m512 w, __m512 sum) {
    return _mm512_fmadd_ps(splat(*source), w, sum);
  }
};

struct BFloat16Product {
  using Type = BFloat16Bits;
  static constexpr std::int64_t kDepth = 2;
  static __m512 multiply(const std::uint16_t* source, __m512 w, __m512 sum) {
    int pair;
    __builtin_memcpy(&pair, source, sizeof pair);
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)),
                            reinterpret_cast<__m512bh>(w));
  }
};

template <class Value>
struct TileArguments {
  const Value* source;
  std::int64_t source_row, depth;
  const float* weights;
  const float* bias;  // padded to whole vectors
  const Value* residual;
  Value* target;
  std::int64_t target_row;
  __mmask16 last_lanes;  // of the last vector
  const Epilogue& epilogue;
};

// `kCount` rows of the source by `kWide` vectors of outputs.
template <class Product, Activation kActivation, int kCount, int kWide>
void tile(const TileArguments<typename Product::Type::Value>& a) {
  using T = typename Product::Type;
  __m512 sum[kCount][kWide];
  for (int r = 0; r < kCount; ++r) {
    for (int v = 0; v < kWide; ++v) sum[r][v] = _mm512_load_ps(a.bias + v * kLanes);
  }
  const float* weights = a.weights;
  const auto* source = a.source;
  for (std::int64_t k = 0; k < a.depth; k += Product::kDepth) {
    __m512 w[kWide];
#pragma GCC unroll 3
    for (int v = 0; v < kWide; ++v) w[v] = _mm512_load_ps(weights + v * kLanes);
    weights += kWide * kLanes;
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < kWide; ++v) {
        sum[r][v] = Product::multiply(source + r * a.source_row + k, w[v], sum[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kCount; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kWide; ++v) {
      const std::int64_t at = r * a.target_row + v * kLanes;
      const __mmask16 lanes = v == kWide - 1 ? a.last_lanes : kAllLanes;
      __m512 value = sum[r][v];
      if (a.residual) value = _mm512_add_ps(value, T::load(a.residual + at, lanes));
      T::store(a.target + at, lanes, activate<kActivation, T::kCoarse>(a.epilogue, value));
    }
  }
}

// Rows [0, count) in tiles of 8, 4, 2 and 1.
template <class Product, Activation kActivation, int kWide>
void tiles(TileArguments<typename Product::Type::Value> a, std::int64_t count) {
  const auto advance = [&](std::int64_t rows) {
    a.source += rows * a.source_row;
    a.target += rows * a.target_row;
    if (a.residual) a.residual += rows * a.target_row;
    count -= rows;
  };
  for (; count >= 8; advance(8)) tile<Product, kActivation, 8, kWide>(a);
  for (; count >= 4; advance(4)) tile<Product, kActivation, 4, kWide>(a);
  for (; count >= 2; advance(2)) tile<Product, kActivation, 2, kWide>(a);
  for (; count >= 1; advance(1)) tile<Product, kActivation, 1, kWide>(a);
}

// Rows times the gate of their image, dense.
template <class T>
void gate_rows(const Pointwise& p, const PointwiseData& data, std::int64_t first, std::int64_t last,
               typename T::Value* to) {
  using Value = typename T::Value;
  for (std::int64_t row = first; row < last; ++row) {
    const auto* from = static_cast<const Value*>(data.source) + row * p.source_row;
    const auto* gate = static_cast<const Value*>(data.gate) + row / p.pixels * p.depth;
    for (std::int64_t k = 0; k < p.depth; k += kLanes, to += kLanes) {
      const __mmask16 lanes = first_lanes(p.depth - k);
      T::store(to, lanes, _mm512_mul_ps(T::load(from + k, lanes), T::load(gate + k, lanes)));
    }
    to -= (kLanes - p.depth % kLanes) % kLanes;
  }
}

template <class Product>
void panel_rows(const Pointwise& p, const PointwiseData& data, const typename Product::Type::Value* source,
                std::int64_t source_row, std::int64_t first, std::int64_t count, std::int64_t panel) {
  using Value = typename Product::Type::Value;
  const std::int64_t output = panel * kPanel;
  const std::int64_t outputs = p.outputs - output < kPanel ? p.outputs - output : kPanel;
  const std::int64_t vectors = (outputs + kLanes - 1) / kLanes;
  const std::int64_t steps = (p.depth + Product::kDepth - 1) / Product::kDepth;
  const float* weights = static_cast<const float*>(data.weights) + panel * kPanel * steps;
  alignas(64) float bias[kPanel] = {};
  if (data.bias) std::memcpy(bias, data.bias + output, static_cast<std::size_t>(outputs) * sizeof(float));
  const std::int64_t at = first * p.target_row + output;
  const TileArguments<Value> arguments{
      source,
      source_row,
      p.depth,
      weights,
      bias,
      p.has_residual ? static_cast<const Value*>(data.residual) + at : nullptr,
      static_cast<Value*>(data.target) + at,
      p.target_row,
      first_lanes(outputs - (vectors - 1) * kLanes),
      p.epilogue};
  with_activation(p.epilogue, [&]<Activation kActivation>() {
    if (vectors == 3) tiles<Product, kActivation, 3>(arguments, count);
    if (vectors == 2) tiles<Product, kActivation, 2>(arguments, count);
    if (vectors == 1) tiles<Product, kActivation, 1>(arguments, count);
  });
}

template <class Product>
void rows(const Pointwise& p, const PointwiseData& data, std::int64_t first, std::int64_t last,
          std::int64_t first_panel, std::int64_t last_panel, char* buffer) {
  using Value = typename Product::Type::Value;
  constexpr DType kType = sizeof(Value) == 4 ? DType::Float32 : DType::BFloat16;
  const std::int64_t chunk = pointwise_chunk(p, kType);
  for (std::int64_t row = first; row < last; row += chunk) {
    const std::int64_t count = last - row < chunk ? last - row : chunk;
    const Value* source = static_cast<const Value*>(data.source) + row * p.source_row;
    std::int64_t source_row = p.source_row;
    if (p.has_gate) {
      auto* gated = reinterpret_cast<Value*>(buffer);
      gate_rows<typename Product::Type>(p, data, row, row + count, gated);
      source = gated;
      source_row = p.depth;
    }
    for (std::int64_t panel = first_panel; panel < last_panel; ++panel) {
      panel_rows<Product>(p, data, source, source_row, row, count, panel);
    }
  }
}

}  // namespace

PointwiseFn pointwise_avx512(DType type) {
  if (type == DType::Float32) return rows<Float32Product>;
  return type == DType::BFloat16 ? rows<BFloat16Product> : nullptr;
}

}  // namespace npu::convolution
