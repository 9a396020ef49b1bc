// Convolutions by cuDNN: y = act(conv(x, w) + bias + residual) as one operation graph, and their gradients.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/dnn.h"

namespace npu::cuda {

struct ConvolutionSpec {
  std::string library;  // path of libcudnn
  Direction direction = Direction::kForward;
  std::string dtype;   // of the operands: float32, float16 or bfloat16; sums are float32
  std::string result;  // of what is computed: y, or x (kData) or w (kWeights)
  Dims x, x_strides, w, w_strides, y, y_strides;  // N, C, space; O, I / groups, space; gradients likewise
  Dims strides, dilations, pads_begin, pads_end;
  bool has_bias = false;      // of the result's type, one number for each channel; forward only, as the rest
  bool has_residual = false;  // laid out as the result
  std::string activation;     // "", relu, relu6, sigmoid, tanh, swish, gelu_erf or gelu_tanh
};

// "forward", "data" or "weights".
Direction direction_of(const std::string& name);

class Convolution {
 public:
  // Raises Unsupported when cuDNN proposes no engine.
  Convolution(Device& device, const ConvolutionSpec& spec);

  std::size_t candidates() const { return graph_.candidates(); }
  std::string describe(std::size_t candidate) const { return graph_.describe(candidate); }
  std::int64_t prepare(std::size_t candidate) { return graph_.prepare(candidate); }
  void enqueue(const Stream& stream, std::size_t candidate, Address x, Address w, Address bias,
               Address residual, Address y, Address workspace) const;

 private:
  DnnGraph graph_;
  bool has_bias_, has_residual_;
};

}  // namespace npu::cuda
