// Depthwise convolution of channels-last images, 16 channels at a time.
//
// The rows that an output row needs are kept as padded float32 rows in a buffer that fits the first-level
// cache: every source value is read and widened once, and no output needs to know where the border is.
#pragma once

#include <cstdint>

#include "convolution/epilogue.h"
#include "core/dtype.h"
#include "core/processor.h"

namespace npu::convolution {

struct Depthwise {
  std::int64_t batch, channels;
  std::int64_t height, width, out_height, out_width;
  std::int64_t kernel, stride, pad_top, pad_left;
  std::int64_t source_image, source_row, source_pixel;  // distances in elements
  std::int64_t target_image, target_row, target_pixel;
  Epilogue epilogue;
  bool has_residual = false;  // laid out like the target

  std::int64_t blocks() const { return (channels + 15) / 16; }
  std::int64_t padded_width() const { return (out_width - 1) * stride + kernel; }
  std::int64_t buffer_bytes() const { return kernel * padded_width() * 64; }
};

struct DepthwiseData {
  const void* source;
  const float* weights;  // (blocks, kernel * kernel, 16)
  const float* bias;     // or nullptr
  const void* residual;
  void* target;
};

// Computes output rows [first, last) of one block of channels of one image.
using DepthwiseFn = void (*)(const Depthwise& params, const DepthwiseData& data, std::int64_t image,
                             std::int64_t block, std::int64_t first, std::int64_t last, float* buffer);

// The function for a type, kernel and stride on this machine, or nullptr.
DepthwiseFn depthwise(DType type, std::int64_t kernel, std::int64_t stride);
template <Vectors>
DepthwiseFn depthwise_for(DType type, std::int64_t kernel, std::int64_t stride);

}  // namespace npu::convolution
