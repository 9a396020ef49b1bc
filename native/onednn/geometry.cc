// Geometry of convolutions.
#include "onednn/geometry.h"

#include <utility>

namespace npu {

ConvGeometry::ConvGeometry(const Lowering& low, std::size_t spatial) {
  const Attrs& attrs = low.attrs();
  strides = attrs.integers("strides", Dims(spatial, 1));
  dilations = attrs.integers("dilations", Dims(spatial, 1));
  pads_begin = attrs.integers("pads_begin", Dims(spatial, 0));
  pads_end = attrs.integers("pads_end", Dims(spatial, 0));
  groups = attrs.integer("groups", 1);
  for (std::int64_t& dilation : dilations) --dilation;
  const auto fits = [&](const Dims& list) { return list.size() == spatial; };
  if (!fits(strides) || !fits(dilations) || !fits(pads_begin) || !fits(pads_end)) {
    low.reject("strides, dilations and pads need one number for each spatial dimension");
  }
}

Desc weights_desc(const Lowering& low, const View& w, std::int64_t groups, bool transposed) {
  Dims dims = w.dims;
  Dims strides = w.strides;
  if (groups < 1 || dims[0] % groups) low.reject("the number of channels is not a multiple of the groups");
  dims[0] /= groups;
  const std::int64_t group_stride = dims[0] * strides[0];
  if (transposed) {
    std::swap(dims[0], dims[1]);
    std::swap(strides[0], strides[1]);
  }
  if (groups > 1) {
    dims.insert(dims.begin(), groups);
    strides.insert(strides.begin(), group_stride);
  }
  return describe(low, w.dtype, dims, strides);
}

Desc channel_vector(const Lowering& low, const View& bias, std::int64_t channels) {
  if (bias.elements() != channels) low.reject("the bias must have one value for each output channel");
  return describe(low, bias.dtype, {channels}, {1});
}

}  // namespace npu
