// Task kinds "conv" and "deconv".
#include <algorithm>

#include "convolution/lower.h"
#include "onednn/engine.h"
#include "onednn/geometry.h"
#include "onednn/primitive.h"
#include "winograd/lower.h"

namespace npu {
namespace {

void check_ranks(const Lowering& low) {
  const std::size_t rank = low.input(0).dims.size();
  if (rank < 3 || rank > 5) low.reject("one to three spatial dimensions are supported");
  if (low.input(1).dims.size() != rank || low.output(0).dims.size() != rank) {
    low.reject("source, weights and output must have the same number of dimensions");
  }
  if (low.input(1).elements() == 0) low.reject("the weights are empty");
}

// The library multiplies 16-bit floats in pairs of channels. For the second of a 1x1 kernel with one channel
// it reads the next pixel, whose product with 0 is NaN where it is infinite.
void check_pairs(const Lowering& low) {
  const View& w = low.input(1);
  const bool half = w.dtype == DType::BFloat16 || w.dtype == DType::Float16;
  if (half && std::all_of(w.dims.begin() + 1, w.dims.end(), [](std::int64_t n) { return n == 1; })) {
    low.reject("the library needs two channels of 16-bit floats");
  }
}

// The source times one number for each image and channel, in scratch memory.
Location lower_gate(Lowering& low, const View& gate, const Desc& source) {
  const Desc factors = describe(low, gate);
  const dnnl::binary::primitive_desc desc(onednn_engine(), dnnl::algorithm::binary_mul, source, factors,
                                          source, base_attr());
  const Location product = low.scratch(source.get_size());
  PrimitiveBuilder builder(low);
  builder.read(DNNL_ARG_SRC_0, low.input(0), source, source);
  builder.read(DNNL_ARG_SRC_1, gate, factors, factors);
  builder.add({DNNL_ARG_DST, source, product});
  builder.finish<dnnl::binary>(desc, layout_name(source), 0);
  return product;
}

// `late`: swish, the last post-operation, is applied after the primitive.
template <class Primitive>
void lower_convolution(Lowering& low, dnnl::algorithm algorithm, bool transposed, bool late) {
  using PrimitiveDesc = typename Primitive::primitive_desc;
  check_ranks(low);
  if (!transposed) check_pairs(low);
  const ConvGeometry geometry(low, low.input(0).dims.size() - 2);
  const View& y = low.output(0);
  const bool has_bias = low.attrs().flag("has_bias"), gated = low.attrs().flag("has_gate");
  const std::size_t gate = has_bias ? 3 : 2;
  const Desc source = describe(low, low.input(0));
  const Desc target = describe(low, y);
  const Desc weights = weights_desc(low, low.input(1), geometry.groups, transposed);
  const Desc bias = has_bias ? channel_vector(low, low.input(2), y.dims[1]) : Desc();
  const PaddedOperandShape post_shape(y.dims.size());
  if (late) check_late_activation(low);
  const AttributeSet attributes =
      make_attributes(low, gate + (gated ? 1 : 0), geometry.groups > 1 ? 3 : 1, post_shape, late ? 1 : 0);

  const View& image = transposed ? low.input(0) : y;
  const View& w = low.input(1);
  const double flops =
      2.0 * static_cast<double>(image.elements()) * static_cast<double>(w.elements() / w.dims[0]);
  const TeamScope team(team_of(low));
  const bool fixed_weights = low.attrs().flag("plain_weights");
  const PrimitiveDesc desc(onednn_engine(), dnnl::prop_kind::forward_inference, algorithm, source,
                           fixed_weights ? weights : any_layout(weights), bias, target, geometry.strides,
                           geometry.dilations, geometry.pads_begin, geometry.pads_end, attributes.attr);

  PrimitiveBuilder builder(low);
  if (gated) {
    builder.read(DNNL_ARG_SRC, lower_gate(low, low.input(gate), source), source, desc.src_desc());
  } else {
    builder.read(DNNL_ARG_SRC, low.input(0), source, desc.src_desc());
  }
  builder.read(DNNL_ARG_WEIGHTS, low.input(1), weights, desc.weights_desc());
  if (has_bias) builder.read(DNNL_ARG_BIAS, low.input(2), bias, desc.bias_desc());
  builder.write(DNNL_ARG_DST, y, target, desc.dst_desc());
  builder.add(attributes);
  const auto again = [=](const dnnl::primitive_attr& attr) {
    const PrimitiveDesc same(onednn_engine(), dnnl::prop_kind::forward_inference, algorithm, desc.src_desc(),
                             desc.weights_desc(), desc.bias_desc(), desc.dst_desc(), geometry.strides,
                             geometry.dilations, geometry.pads_begin, geometry.pads_end, attr);
    return NanRepair::Primitive(Primitive(same), same.scratchpad_desc());
  };
  builder.finish<Primitive>(
      desc, layout_name(desc.src_desc()) + "," + layout_name(desc.weights_desc()), flops,
      {attributes.before_bounds, again, attributes.accumulates, low.attrs().flag("addend_raises_on_nan")});
  if (late) {
    lower_late_activation(low);
    if (low.attrs().flag("raises_on_nan")) emit_nan_search(low);
  }
}

template <bool kLate>
void lower_library_conv(Lowering& low) {
  lower_convolution<dnnl::convolution_forward>(low, dnnl::algorithm::convolution_direct, false, kLate);
}

template <bool kLate>
void lower_library_deconv(Lowering& low) {
  lower_convolution<dnnl::deconvolution_forward>(low, dnnl::algorithm::deconvolution_direct, true, kLate);
}

template <bool kTransposed>
void lower_as_winograd(Lowering& low) {
  check_ranks(low);
  lower_winograd(low, kTransposed);
}

constexpr Implementation kConvolutions[] = {{"winograd", lower_as_winograd<false>},
                                            {"depthwise", lower_depthwise},
                                            {"pointwise", lower_pointwise},
                                            {"onednn_swish", lower_library_conv<true>},
                                            {"onednn", lower_library_conv<false>}};

constexpr Implementation kTransposed[] = {{"winograd", lower_as_winograd<true>},
                                          {"spread", lower_spread},
                                          {"depthwise_source_gradient", lower_depthwise_source_gradient},
                                          {"onednn_swish", lower_library_deconv<true>},
                                          {"onednn", lower_library_deconv<false>}};

}  // namespace

void lower_conv(Lowering& low) { lower_named(low, kConvolutions); }

void lower_deconv(Lowering& low) { lower_named(low, kTransposed); }

}  // namespace npu
