// Depthwise convolutions and their gradients: the operands of a task as the kernels take them, and its
// shares.
#pragma once

#include <cstdint>

#include "convolution/depthwise.h"
#include "core/half.h"
#include "core/loops.h"
#include "runtime/lowering.h"

namespace npu::convolution {

// Bounds to a quarter what a 3x3 kernel reads twice, in this band and its neighbour.
inline constexpr std::int64_t kMinBandRows = 8;
inline constexpr double kFlopCycles = 0.6;

// Source rows whose channels are worked on in turn.
inline std::int64_t band_bytes() { return loops().l2_bytes / 4; }

// The convolution of channels-last images `x` to `y`.
inline Depthwise depthwise_shape(const View& x, const View& y, std::int64_t kernel, std::int64_t stride,
                                 const Dims& pads) {
  Depthwise s{};
  s.batch = y.dims[0];
  s.channels = y.dims[1];
  s.height = x.dims[2];
  s.width = x.dims[3];
  s.out_height = y.dims[2];
  s.out_width = y.dims[3];
  s.kernel = kernel;
  s.stride = stride;
  s.pad_top = pads[0];
  s.pad_left = pads[1];
  s.source_image = x.strides[0];
  s.source_row = x.strides[2];
  s.source_pixel = x.strides[3];
  s.target_image = y.strides[0];
  s.target_row = y.strides[2];
  s.target_pixel = y.strides[3];
  return s;
}

// Weights (C, 1, k, k) with any strides.
struct DepthwiseWeights {
  DType type = DType::Float32;
  std::int64_t channel = 0, row = 0, column = 0;  // distances in elements

  DepthwiseWeights() = default;
  explicit DepthwiseWeights(const View& w)
      : type(w.dtype), channel(w.strides[0]), row(w.strides[2]), column(w.strides[3]) {}

  std::int64_t at(std::int64_t c, std::int64_t tap, std::int64_t kernel) const {
    return c * channel + tap / kernel * row + tap % kernel * column;
  }

  // As blocks of 16 channels, widened; zeros beyond the last channel.
  void pack(const Depthwise& shape, const void* from, float* to) const {
    if (type == DType::Float32) {
      pack_from(shape, static_cast<const float*>(from), to);
    } else {
      pack_from(shape, static_cast<const BFloat16*>(from), to);
    }
  }

 private:
  template <class T>
  void pack_from(const Depthwise& shape, const T* from, float* to) const {
    for (std::int64_t block = 0; block < shape.blocks(); ++block) {
      for (std::int64_t tap = 0; tap < shape.kernel * shape.kernel; ++tap) {
        for (std::int64_t c = block * 16; c < block * 16 + 16; ++c) {
          *to++ = c < shape.channels ? static_cast<float>(from[at(c, tap, shape.kernel)]) : 0.0f;
        }
      }
    }
  }
};

}  // namespace npu::convolution
