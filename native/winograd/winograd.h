// Winograd convolution F(4x4, 3x3): stride-1 3x3 convolutions of channels-last tensors.
//
// Each 6x6 patch of the source becomes 36 values a channel; 36 matrix products (tiles x channels) by
// (channels x outputs) replace the convolution, with 2.25 multiplications for an output value instead of 9;
// an inverse transform with bias, residual and clipping writes 4x4 values. All arithmetic is float32,
// whatever the element type of source and target. The error stays near 1e-5 of the largest output (direct:
// 1e-6).
#pragma once

#include <cstdint>
#include <limits>

namespace npu::winograd {

inline constexpr std::int64_t kTile = 4;     // outputs of a tile in one direction
inline constexpr std::int64_t kPatch = 6;    // sources of a tile in one direction
inline constexpr std::int64_t kPlanes = 36;  // values of a transformed patch

struct Image {
  std::int64_t height, width, channels;
  std::int64_t row;    // elements between two rows
  std::int64_t pixel;  // elements between two pixels
};

// Weights of any layout as a convolution takes them: strides in elements, `first` is where element 0 lies. A
// transposed convolution has negative kernel strides.
struct Filter {
  std::int64_t outputs, channels;
  std::int64_t output, channel, row, column;
  std::int64_t first;
};

struct Epilogue {
  const float* bias = nullptr;
  bool clip = false;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
};

// Transforms for one instruction set. `plane` is the distance between two planes in elements.
struct Transforms {
  std::int64_t lanes;  // channels must be a multiple of this
  void (*source_f32)(const Image&, const float* image, std::int64_t y, std::int64_t x, float* planes,
                     std::int64_t plane);
  void (*source_bf16)(const Image&, const std::uint16_t* image, std::int64_t y, std::int64_t x, float* planes,
                      std::int64_t plane);
  void (*target_f32)(const Image&, const Epilogue&, const float* planes, std::int64_t plane, std::int64_t y,
                     std::int64_t x, const float* residual, float* image);
  void (*target_bf16)(const Image&, const Epilogue&, const float* planes, std::int64_t plane, std::int64_t y,
                      std::int64_t x, const std::uint16_t* residual, std::uint16_t* image);
  // Weights of `lanes` channels from `channel` on into 36 matrices (channels x outputs), in single precision.
  void (*filter)(const Filter&, const float* weights, std::int64_t channel, float* planes,
                 std::int64_t plane);
};

extern const Transforms kTransformsAvx512;
extern const Transforms kTransformsAvx2;

// The transforms this machine can run, or nullptr.
const Transforms* transforms();

// Weights into 36 matrices (channels x outputs) in double precision, for what is done once. T is float, or
// std::uint16_t for bfloat16.
template <class T>
void transform_weights(const Filter& filter, const T* weights, float* planes);

}  // namespace npu::winograd
