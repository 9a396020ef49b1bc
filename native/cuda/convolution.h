// Convolutions by cuDNN's graph interface: y = relu(conv(x, w) + bias + residual) as one operation graph.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device.h"

namespace npu::cuda {

using Dims = std::vector<std::int64_t>;

struct ConvolutionSpec {
  std::string library;  // path of libcudnn
  std::string dtype;    // of all operands: float32, float16 or bfloat16; sums are float32
  Dims x, x_strides, w, w_strides, y, y_strides;  // N, C, space; O, I / groups, space
  Dims strides, dilations, pads_begin, pads_end;
  bool has_bias = false;      // of the result's type, one number for each channel
  bool has_residual = false;  // laid out as the result
  bool relu = false;
};

class Convolution {
 public:
  // Raises Unsupported when cuDNN proposes no engine.
  Convolution(Device& device, const ConvolutionSpec& spec);
  ~Convolution();
  Convolution(const Convolution&) = delete;
  Convolution& operator=(const Convolution&) = delete;

  // Engines proposed, best guess first.
  std::size_t candidates() const;
  // Compiles a candidate; its workspace in bytes, or -1 when cuDNN cannot build it.
  std::int64_t prepare(std::size_t candidate);
  void enqueue(const Stream& stream, std::size_t candidate, Address x, Address w, Address bias,
               Address residual, Address y, Address workspace) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace npu::cuda
