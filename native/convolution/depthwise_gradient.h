// Gradients of a depthwise convolution of channels-last images, 16 channels at a time.
//
// Both are stated by the convolution itself: its source is the image that was convolved (or whose gradient is
// asked for), its target the result whose gradient is given. Rows that several results need are kept as
// padded float32 rows in a buffer, as the convolution does.
#pragma once

#include <algorithm>
#include <cstdint>

#include "convolution/depthwise.h"

namespace npu::convolution {

inline constexpr std::int64_t kMaxGradientKernel = 7;

// The buffer of the source's gradient: rows of the given gradient, with zeros where columns are outside.
struct GradientRows {
  std::int64_t count, left, width;

  explicit GradientRows(const Depthwise& p)
      : count((p.kernel + p.stride - 1) / p.stride),
        left((p.kernel - 1 - p.pad_left) / p.stride),
        width(left + std::max(p.out_width, (p.width - 1 + p.pad_left) / p.stride + 1)) {}

  std::int64_t bytes() const { return count * width * 64; }
};

struct SourceGradientData {
  const void* gradient;
  const float* weights;  // (blocks, kernel * kernel, 16)
  void* source;
};

// Computes rows [first, last) of the source's gradient for one block of channels of one image. Pads before
// the image are smaller than the kernel, which is at most kMaxGradientKernel.
using SourceGradientFn = void (*)(const Depthwise& params, const SourceGradientData& data, std::int64_t image,
                                  std::int64_t block, std::int64_t first, std::int64_t last, float* buffer);

// Adds what rows [first, last) of the given gradient say about the weights to sums of kernel * kernel * 16.
// The buffer is the convolution's.
using WeightSumsFn = void (*)(const Depthwise& params, const void* source, const void* gradient,
                              std::int64_t image, std::int64_t block, std::int64_t first, std::int64_t last,
                              float* sums, float* buffer);

// The functions on this machine, or nullptr.
SourceGradientFn depthwise_source_gradient(DType type);
template <Vectors>
SourceGradientFn depthwise_source_gradient_for(DType type);
WeightSumsFn depthwise_weight_sums(DType type, std::int64_t kernel, std::int64_t stride);
template <Vectors>
WeightSumsFn depthwise_weight_sums_for(DType type, std::int64_t kernel, std::int64_t stride);

}  // namespace npu::convolution
