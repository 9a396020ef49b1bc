// Winograd convolution F(4x4, 3x3): stride-1 3x3 convolutions of channels-last tensors, and their gradients.
//
// Each 6x6 patch of the source becomes 36 values a channel; 36 matrix products (tiles x channels) by
// (channels x outputs) replace the convolution, with 2.25 multiplications for an output value instead of 9;
// an inverse transform with bias, residual and clipping writes 4x4 values. The gradient of the weights is the
// same turned round: 36 products (channels x tiles) by (tiles x outputs) of transformed sources and
// gradients, and an inverse transform to 3x3 values. All arithmetic is float32, whatever the element type of
// source and target.
//
// The transforms evaluate polynomials at 0, +-5/8, +-3/2 and infinity. With the usual 0, +-1, +-2 errors are
// more than twice as large; these numbers are as close to the best as those whose powers are exact can be.
// The error stays near 3e-6 of the largest output (direct: 1e-6).
#pragma once

#include <cstdint>
#include <limits>

namespace npu::winograd {

inline constexpr std::int64_t kTile = 4;      // outputs of a tile in one direction
inline constexpr std::int64_t kPatch = 6;     // sources of a tile in one direction
inline constexpr std::int64_t kPlanes = 36;   // values of a transformed patch
inline constexpr std::int64_t kPanel = 64;    // outputs that are computed together
inline constexpr std::int64_t kPadding = 16;  // keeps planes and rows from falling into the same cache sets
inline constexpr double kNear = 5.0 / 8, kFar = 3.0 / 2;  // the points

struct Image {
  std::int64_t height, width, channels;
  std::int64_t row;    // elements between two rows
  std::int64_t pixel;  // elements between two pixels
};

// Weights of any layout as a convolution takes them: strides in elements, `first` is where element 0 is. A
// transposed convolution has negative kernel strides.
struct Filter {
  std::int64_t outputs, channels;
  std::int64_t output, channel, row, column;
  std::int64_t first;

  // Some of the outputs and channels, from these on.
  Filter part(std::int64_t from_output, std::int64_t output_count, std::int64_t from_channel,
              std::int64_t channel_count) const {
    return {output_count,
            channel_count,
            output,
            channel,
            row,
            column,
            first + from_output * output + from_channel * channel};
  }
};

struct Epilogue {
  const float* bias = nullptr;
  bool clip = false;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
};

// Memory that is used next: blocks of so many bytes at a distance.
struct Ahead {
  const char* first = nullptr;
  std::int64_t bytes = 0, distance = 0, blocks = 0;

  // One of `parts` shares.
  Ahead share(std::int64_t parts, std::int64_t index) const {
    const std::int64_t begin = blocks * index / parts;
    return {first + begin * distance, bytes, distance, blocks * (index + 1) / parts - begin};
  }
};

// c (rows x columns) = a (rows x depth) times b (depth x columns), or c plus it; at most kPanel columns.
struct Product {
  const float* a;
  std::int64_t a_row, a_step;  // distances of rows, and of steps along the depth
  const float* b;
  std::int64_t b_step;
  float* c;
  std::int64_t c_row;
  std::int64_t rows, columns, depth;
  bool add;
  Ahead ahead[2] = {};  // brought into the second-level cache meanwhile, as far as there is time
};

// Transforms for one instruction set. `plane` is the distance between two planes in elements. In float32 and
// in bfloat16 where there are two.
struct Transforms {
  std::int64_t lanes;  // channels must be a multiple of this
  template <class T>
  using Read = void (*)(const Image&, const T* image, std::int64_t y, std::int64_t x, float* planes,
                        std::int64_t plane);
  template <class T>
  using Write = void (*)(const Image&, const Epilogue&, const float* planes, std::int64_t plane,
                         std::int64_t y, std::int64_t x, const T* residual, T* image);
  // Weights into 36 matrices (channels x outputs), in single precision.
  template <class T>
  using ReadFilter = void (*)(const Filter&, const T* weights, float* planes, std::int64_t plane);

  Read<float> source_f32;
  Read<std::uint16_t> source_bf16;
  Write<float> target_f32;
  Write<std::uint16_t> target_bf16;
  ReadFilter<float> filter_f32;
  ReadFilter<std::uint16_t> filter_bf16;
  Read<float> gradient_f32;  // a 4x4 tile of an output's gradient, from (y, x) on
  Read<std::uint16_t> gradient_bf16;
  // 36 matrices (rows x columns), lines of kPanel, into 3x3 taps at distances `tap_row` and `tap_column`.
  void (*collect)(const float* planes, std::int64_t plane, std::int64_t rows, std::int64_t columns,
                  float* weights, std::int64_t row, std::int64_t tap_row, std::int64_t tap_column);
  void (*multiply)(const Product&);
};

extern const Transforms kTransformsAvx512;
extern const Transforms kTransformsAvx2;

// The transforms this machine can run, or nullptr.
const Transforms* transforms();

// Transformed weights: for each panel of outputs 36 matrices (channels x outputs of the panel).
inline std::int64_t filter_plane(std::int64_t channels, std::int64_t width) {
  return channels * width + kPadding;
}
inline std::int64_t filter_panel(std::int64_t channels) { return kPlanes * filter_plane(channels, kPanel); }

// All of them in double precision, for what is done once. T is float, or std::uint16_t for bfloat16.
template <class T>
void transform_weights(const Filter& filter, const T* weights, float* panels);

}  // namespace npu::winograd
