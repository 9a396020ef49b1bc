// The geometry that convolutions share.
#pragma once

#include "onednn/primitive.h"

namespace npu {

// Attributes of a convolution in oneDNN's terms (a dense kernel has dilation 0).
struct ConvGeometry {
  Dims strides, dilations, pads_begin, pads_end;
  std::int64_t groups = 1;

  // `spatial` is the number of spatial dimensions.
  ConvGeometry(const Lowering& low, std::size_t spatial);
};

// Weights (O, I/g, k) with the group as an axis of its own; `transposed`: (I, O/g, k) as deconvolution has
// them.
Desc weights_desc(const Lowering& low, const View& w, std::int64_t groups, bool transposed);

// A vector of one value for each channel.
Desc channel_vector(const Lowering& low, const View& bias, std::int64_t channels);

}  // namespace npu
