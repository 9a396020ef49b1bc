// What our own convolutions do with a result before it is written.
#pragma once

#include <cstdint>
#include <limits>

namespace npu::convolution {

enum class Activation : std::uint8_t { None, Clip, Swish, HardSwish };

// bias + value + residual, then the activation.
struct Epilogue {
  Activation activation = Activation::None;
  float alpha = 1.0f;  // swish: x * sigmoid(alpha * x); hard swish: x * clip(alpha * x + beta, 0, 1)
  float beta = 0.0f;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
};

}  // namespace npu::convolution
