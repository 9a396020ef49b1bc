// 1x1 convolution of channels-last images: a matrix product whose results are activated in registers.
//
// An activation inside oneDNN's kernels costs several times what it costs here, and these can multiply each
// channel of the source by a number of its own on the way (the gate of a squeeze-and-excitation block).
#pragma once

#include <cstdint>

#include "convolution/epilogue.h"
#include "core/dtype.h"
#include "core/processor.h"

namespace npu::convolution {

inline constexpr std::int64_t kPanel = 48;  // outputs computed at once

struct Pointwise {
  std::int64_t images, pixels, depth, outputs;  // rows of the product: images * pixels
  std::int64_t source_row, target_row;          // distances in elements
  Epilogue epilogue;
  bool has_residual = false;  // laid out like the target
  bool has_gate = false;      // (images, depth), of the source's type
  std::int64_t chunk = 8;     // rows worked on together

  std::int64_t rows() const { return images * pixels; }
  std::int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
};

struct PointwiseData {
  const void* source;
  const void* weights;  // packed
  const float* bias;    // or nullptr
  const void* residual;
  const void* gate;
  void* target;
};

// The rows that the second-level cache holds, and the bytes a thread needs for gated ones.
std::int64_t pointwise_chunk(const Pointwise& params, DType type);
std::int64_t pointwise_buffer_bytes(const Pointwise& params, DType type);

// Computes rows [first, last) of panels [first_panel, last_panel).
using PointwiseFn = void (*)(const Pointwise& params, const PointwiseData& data, std::int64_t first,
                             std::int64_t last, std::int64_t first_panel, std::int64_t last_panel,
                             char* buffer);

// The function for a type on this machine, or nullptr.
PointwiseFn pointwise(DType type);
template <Vectors>
PointwiseFn pointwise_for(DType type);

// Packs weights (outputs, depth) with strides in elements into panels; bytes of the result.
std::int64_t packed_bytes(DType type, std::int64_t outputs, std::int64_t depth);
void pack_pointwise(DType type, const void* weights, std::int64_t outputs, std::int64_t depth,
                    std::int64_t output_stride, std::int64_t depth_stride, void* packed);

}  // namespace npu::convolution
