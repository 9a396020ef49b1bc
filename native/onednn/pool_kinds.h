// The geometry that pooling and its gradient share.
#pragma once

#include "onednn/primitive.h"

namespace npu {

struct PoolGeometry {
  dnnl::algorithm algorithm;
  Dims kernel, strides, dilations, pads_begin, pads_end;

  PoolGeometry(const Lowering& low, std::size_t spatial);
  double window() const;  // elements of one window
};

}  // namespace npu
