// Task kinds "conv_grad_weights" and "pool_grad"; the gradient of a convolution's source is a "deconv".
#include "convolution/lower.h"
#include "onednn/engine.h"
#include "onednn/geometry.h"
#include "onednn/pool_kinds.h"
#include "onednn/primitive.h"
#include "winograd/lower.h"

namespace npu {
namespace {

void check_images(const Lowering& low, const View& a, const View& b) {
  const std::size_t rank = a.dims.size();
  if (rank < 3 || rank > 5 || b.dims.size() != rank)
    low.reject("one to three spatial dimensions are supported");
}

}  // namespace

// Inputs: x, gradient of y. Outputs: gradient of w (O, I/g, k) and, if given, of the bias. The algorithm
// "library" is oneDNN's where we have one of our own.
void lower_conv_grad_weights(Lowering& low) {
  using Gradient = dnnl::convolution_backward_weights;
  const bool ours = low.attrs().text("algorithm", "auto") != "library";
  if (ours &&
      (lower_winograd_gradient(low) || lower_weight_gradient(low) || lower_depthwise_weight_gradient(low))) {
    return;
  }
  const View& x = low.input(0);
  const View& dy = low.input(1);
  const View& dw = low.output(0);
  check_images(low, x, dy);
  if (dw.dims.size() != x.dims.size()) low.reject("the weights have another number of dimensions");
  const ConvGeometry geometry(low, x.dims.size() - 2);
  const bool has_bias = low.output_count() > 1;
  const Desc source = describe(low, x), target = describe(low, dy);
  const Desc weights = weights_desc(low, dw, geometry.groups, false);
  const Desc bias = has_bias ? channel_vector(low, low.output(1), dy.dims[1]) : Desc();
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const auto attr = base_attr();
  // The forward pass has weights of the data's type, whatever their gradient's.
  const Desc forward_weights(weights.get_dims(), source.get_data_type(), dnnl::memory::format_tag::any);
  const dnnl::convolution_forward::primitive_desc hint(
      onednn_engine(), dnnl::prop_kind::forward_training, algorithm, source, forward_weights, bias, target,
      geometry.strides, geometry.dilations, geometry.pads_begin, geometry.pads_end, attr);
  const Gradient::primitive_desc desc(onednn_engine(), algorithm, source, any_layout(weights), bias, target,
                                      geometry.strides, geometry.dilations, geometry.pads_begin,
                                      geometry.pads_end, hint, attr);
  PrimitivePlan plan(low);
  plan.read(DNNL_ARG_SRC, x, source, desc.src_desc());
  plan.read(DNNL_ARG_DIFF_DST, dy, target, desc.diff_dst_desc());
  plan.write(DNNL_ARG_DIFF_WEIGHTS, dw, weights, desc.diff_weights_desc());
  if (has_bias) plan.write(DNNL_ARG_DIFF_BIAS, low.output(1), bias, desc.diff_bias_desc());
  const double flops =
      2.0 * static_cast<double>(dy.elements()) * static_cast<double>(dw.elements() / dw.dims[0]);
  plan.finish<Gradient>(desc, layout_name(desc.src_desc()) + "," + layout_name(desc.diff_weights_desc()),
                        flops);
}

// Inputs: gradient of y and, for maxima, x. Output: gradient of x. The maxima are found again, as nothing
// kept where they were.
void lower_pool_grad(Lowering& low) {
  const View& dy = low.input(0);
  const View& x = low.input_count() > 1 ? low.input(1) : low.output(0);
  check_images(low, x, dy);
  const PoolGeometry pool(low, x.dims.size() - 2);
  const Desc source = describe(low, x), target = describe(low, dy), dx = describe(low, low.output(0));
  const auto attr = base_attr();
  const dnnl::pooling_forward::primitive_desc forward(
      onednn_engine(), dnnl::prop_kind::forward_training, pool.algorithm, source, target, pool.strides,
      pool.kernel, pool.dilations, pool.pads_begin, pool.pads_end, attr);
  const dnnl::pooling_backward::primitive_desc backward(onednn_engine(), pool.algorithm, dx, target,
                                                        pool.strides, pool.kernel, pool.dilations,
                                                        pool.pads_begin, pool.pads_end, forward, attr);
  PrimitivePlan after(low);
  if (pool.algorithm == dnnl::algorithm::pooling_max) {
    if (low.input_count() < 2) low.reject("the gradient of a maximum needs the pooled data");
    const Desc notes = forward.workspace_desc();
    const Location workspace = low.scratch(notes.get_size());
    PrimitivePlan before(low);
    before.read(DNNL_ARG_SRC, x, source, forward.src_desc());
    before.add({DNNL_ARG_DST, forward.dst_desc(), low.scratch(forward.dst_desc().get_size())});
    before.add({DNNL_ARG_WORKSPACE, notes, workspace});
    before.finish<dnnl::pooling_forward>(forward, "", 0);
    after.add({DNNL_ARG_WORKSPACE, notes, workspace});
  }
  after.read(DNNL_ARG_DIFF_DST, dy, target, backward.diff_dst_desc());
  after.write(DNNL_ARG_DIFF_SRC, low.output(0), dx, backward.diff_src_desc());
  after.finish<dnnl::pooling_backward>(backward, layout_name(backward.diff_src_desc()),
                                       static_cast<double>(dy.elements()) * pool.window());
}

}  // namespace npu
