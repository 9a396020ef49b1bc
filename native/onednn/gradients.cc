// Task kinds "conv_grad_weights" and "pool_grad"; the gradient of a convolution's source is a "deconv".
#include <algorithm>
#include <atomic>

#include "convolution/lower.h"
#include "core/errors.h"
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

// The gradient for some of the images, computed by one thread or all.
struct Share {
  dnnl::convolution_backward_weights::primitive_desc desc;
  View x, dy;
};

constexpr double kCycles = 4;  // of a number that is added

// Partial gradients and the destination of their sum.
struct Partial {
  int arg = 0;
  Desc desc;
  std::vector<Location> places;  // the first one receives the sum
};

class BoundShares : public BoundStep {
 public:
  explicit BoundShares(const std::string& task) : task_(task) {}

  void run(RunState& state) override {
    std::atomic<int> failed = dnnl_success;
    parallel_for(static_cast<std::int64_t>(args.size()), 1, [&](std::int64_t first, std::int64_t last) {
      for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
        const auto status = dnnl_primitive_execute(primitives[i], state.stream,
                                                   static_cast<int>(args[i].size()), args[i].data());
        if (status != dnnl_success) failed = status;
      }
    });
    if (failed != dnnl_success) throw TaskError(task_, "oneDNN failed with status " + std::to_string(failed));
    for (const Sum& sum : sums) add_up(sum);
  }

  struct Sum {
    std::int64_t elements = 0;
    std::vector<void*> places;
  };

  std::vector<dnnl_primitive_t> primitives;
  std::vector<std::vector<dnnl_exec_arg_t>> args;
  std::vector<Sum> sums;

 private:
  static void add_up(const Sum& sum) {
    parallel_for(sum.elements, grain(kCycles), [&](std::int64_t first, std::int64_t last) {
      auto* total = static_cast<float*>(sum.places[0]);
      for (std::size_t part = 1; part < sum.places.size(); ++part) {
        const auto* values = static_cast<const float*>(sum.places[part]);
        for (std::int64_t i = first; i < last; ++i) total[i] += values[i];
      }
    });
  }

  const std::string& task_;
};

class SharesStep : public Step {
 public:
  SharesStep(const std::vector<Share>& shares, std::vector<std::vector<Operand>> args,
             std::vector<Partial> partials, std::string task)
      : args_(std::move(args)), partials_(std::move(partials)), task_(std::move(task)) {
    for (const Share& share : shares) primitives_.emplace_back(share.desc);
  }

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundShares>(task_);
    for (std::size_t i = 0; i < args_.size(); ++i) {
      bound->primitives.push_back(primitives_[i].get());
      auto& args = bound->args.emplace_back();
      for (const Operand& arg : args_[i]) args.push_back({arg.arg, binder.memory(arg.desc, arg.where)});
    }
    for (const Partial& partial : partials_) {
      auto& sum = bound->sums.emplace_back();
      sum.elements = static_cast<std::int64_t>(partial.desc.get_size() / sizeof(float));
      sum.places.resize(partial.places.size());
    }
    for (std::size_t i = 0; i < partials_.size(); ++i) {
      for (std::size_t j = 0; j < partials_[i].places.size(); ++j)
        binder.address(&bound->sums[i].places[j], partials_[i].places[j]);
    }
    return bound;
  }

 private:
  std::vector<dnnl::convolution_backward_weights> primitives_;
  std::vector<std::vector<Operand>> args_;
  std::vector<Partial> partials_;
  std::string task_;
};

View images_of(const View& view, std::int64_t first, std::int64_t count) {
  View part = view;
  part.offset += first * view.strides[0];
  part.dims[0] = count;
  return part;
}

class WeightGradient {
 public:
  explicit WeightGradient(Lowering& low)
      : low_(low),
        x_(low.input(0)),
        dy_(low.input(1)),
        dw_(low.output(0)),
        geometry_(low, x_.dims.size() - 2),
        has_bias_(low.output_count() > 1) {
    flops_ = 2.0 * static_cast<double>(dy_.elements()) * static_cast<double>(dw_.elements() / dw_.dims[0]);
  }

  // One primitive for all images.
  void lower_whole() {
    const TeamScope team(team_of(low_));
    const auto [desc, x, dy] = share(0, x_.dims[0], false);
    PrimitiveBuilder builder(low_);
    builder.read(DNNL_ARG_SRC, x_, describe(low_, x_), desc.src_desc());
    builder.read(DNNL_ARG_DIFF_DST, dy_, describe(low_, dy_), desc.diff_dst_desc());
    builder.write(DNNL_ARG_DIFF_WEIGHTS, dw_, weights_desc(), desc.diff_weights_desc());
    if (has_bias_) builder.write(DNNL_ARG_DIFF_BIAS, low_.output(1), bias_desc(), desc.diff_bias_desc());
    builder.finish<dnnl::convolution_backward_weights>(desc, layouts(desc), flops_);
  }

  // A primitive for each thread's images. The threads of one primitive meet at a barrier at which they spin:
  // where other programs keep a thread off its core, the rest wait for it.
  void lower_shares() {
    const std::int64_t count =
        std::clamp<std::int64_t>(omp_get_max_threads(), 1, std::max<std::int64_t>(x_.dims[0], 1));
    const TeamScope team(1);
    std::vector<Share> shares;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t first = x_.dims[0] * i / count;
      shares.push_back(share(first, x_.dims[0] * (i + 1) / count - first, true));
    }
    const auto& made = shares[0].desc;
    low_.describe(made.impl_info_str(), layouts(made), flops_);
    std::vector<Partial> partials;
    partials.push_back(partial(DNNL_ARG_DIFF_WEIGHTS, made.diff_weights_desc(), weights_desc(), dw_, count));
    if (has_bias_)
      partials.push_back(
          partial(DNNL_ARG_DIFF_BIAS, made.diff_bias_desc(), bias_desc(), low_.output(1), count));
    std::vector<std::vector<Operand>> args(shares.size());
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const auto& desc = shares[i].desc;
      args[i] = {{DNNL_ARG_SRC, desc.src_desc(), low_.at(shares[i].x)},
                 {DNNL_ARG_DIFF_DST, desc.diff_dst_desc(), low_.at(shares[i].dy)}};
      for (const Partial& partial : partials)
        args[i].push_back({partial.arg, partial.desc, partial.places[i]});
      if (const auto bytes = desc.scratchpad_desc().get_size())
        args[i].push_back({DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc(), low_.scratch(bytes)});
    }
    low_.emit(std::make_unique<SharesStep>(shares, std::move(args), partials, low_.task().name));
    finish(partials[0], weights_desc(), dw_);
    if (has_bias_) finish(partials[1], bias_desc(), low_.output(1));
  }

 private:
  Share share(std::int64_t first, std::int64_t count, bool wide) const {
    const View x = images_of(x_, first, count), dy = images_of(dy_, first, count);
    const Desc source = describe(low_, x), target = describe(low_, dy);
    const Desc bias = has_bias_ ? as(bias_desc(), wide) : Desc();
    const auto algorithm = dnnl::algorithm::convolution_direct;
    const auto attr = base_attr();
    // Forward weights have the data's type, independent of the gradient's.
    const Desc forward_weights(weights_desc().get_dims(), source.get_data_type(),
                               dnnl::memory::format_tag::any);
    const Desc forward_bias = has_bias_ ? bias_desc() : Desc();
    const dnnl::convolution_forward::primitive_desc hint(
        onednn_engine(), dnnl::prop_kind::forward_training, algorithm, source, forward_weights, forward_bias,
        target, geometry_.strides, geometry_.dilations, geometry_.pads_begin, geometry_.pads_end, attr);
    return {{onednn_engine(), algorithm, source, any_layout(as(weights_desc(), wide)), bias, target,
             geometry_.strides, geometry_.dilations, geometry_.pads_begin, geometry_.pads_end, hint, attr},
            x,
            dy};
  }

  Desc weights_desc() const { return npu::weights_desc(low_, dw_, geometry_.groups, false); }
  Desc bias_desc() const { return channel_vector(low_, low_.output(1), dy_.dims[1]); }
  static Desc as(const Desc& desc, bool wide) {
    return wide ? Desc(desc.get_dims(), dnnl::memory::data_type::f32, desc.get_strides()) : desc;
  }

  template <class PrimitiveDesc>
  static std::string layouts(const PrimitiveDesc& desc) {
    return layout_name(desc.src_desc()) + "," + layout_name(desc.diff_weights_desc());
  }

  Partial partial(int arg, const Desc& made, const Desc& wanted, const View& view, std::int64_t count) {
    Partial result{arg, made, {made == wanted ? low_.at(view) : low_.scratch(made.get_size())}};
    for (std::int64_t i = 1; i < count; ++i) result.places.push_back(low_.scratch(made.get_size()));
    return result;
  }

  void finish(const Partial& partial, const Desc& wanted, const View& view) {
    if (partial.desc != wanted) emit_reorder(low_, partial.desc, partial.places[0], wanted, low_.at(view));
  }

  Lowering& low_;
  const View &x_, &dy_, &dw_;
  ConvGeometry geometry_;
  bool has_bias_;
  double flops_ = 0;
};

WeightGradient weight_gradient_of(Lowering& low) {
  check_images(low, low.input(0), low.input(1));
  if (low.output(0).dims.size() != low.input(0).dims.size())
    low.reject("the weights have another number of dimensions");
  return WeightGradient(low);
}

void lower_library_gradient(Lowering& low) { weight_gradient_of(low).lower_whole(); }

void lower_library_shares(Lowering& low) { weight_gradient_of(low).lower_shares(); }

// Inputs: gradient of y and, for maxima, x. Output: gradient of x. The maxima are found again, as nothing
// kept where they were.
void lower_library_pool_grad(Lowering& low) {
  const View& dy = low.input(0);
  const View& x = low.input_count() > 1 ? low.input(1) : low.output(0);
  check_images(low, x, dy);
  const PoolGeometry pool(low, x.dims.size() - 2);
  const TeamScope team(team_of(low));
  const Desc source = describe(low, x), target = describe(low, dy), dx = describe(low, low.output(0));
  const auto attr = base_attr();
  const dnnl::pooling_forward::primitive_desc forward(
      onednn_engine(), dnnl::prop_kind::forward_training, pool.algorithm, source, target, pool.strides,
      pool.kernel, pool.dilations, pool.pads_begin, pool.pads_end, attr);
  const dnnl::pooling_backward::primitive_desc backward(onednn_engine(), pool.algorithm, dx, target,
                                                        pool.strides, pool.kernel, pool.dilations,
                                                        pool.pads_begin, pool.pads_end, forward, attr);
  PrimitiveBuilder after(low);
  if (pool.algorithm == dnnl::algorithm::pooling_max) {
    if (low.input_count() < 2) low.reject("the gradient of a maximum needs the pooled data");
    const Desc notes = forward.workspace_desc();
    const Location workspace = low.scratch(notes.get_size());
    PrimitiveBuilder before(low);
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

constexpr Implementation kWeightGradients[] = {{"winograd", lower_winograd_gradient},
                                               {"weight_gradient", lower_weight_gradient},
                                               {"depthwise_weight_gradient", lower_depthwise_weight_gradient},
                                               {"onednn_shares", lower_library_shares},
                                               {"onednn", lower_library_gradient}};

constexpr Implementation kPoolGradients[] = {{"onednn", lower_library_pool_grad}};

}  // namespace

// Inputs: x, gradient of y. Outputs: gradient of w (O, I/g, k) and, if given, of the bias.
void lower_conv_grad_weights(Lowering& low) { lower_named(low, kWeightGradients); }

void lower_pool_grad(Lowering& low) { lower_named(low, kPoolGradients); }

}  // namespace npu
