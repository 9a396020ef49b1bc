// Transposed 1x1 convolutions with strides: a product for the pixels that receive one, then their spreading.
#include <algorithm>
#include <cstring>
#include <optional>

#include "convolution/lower.h"
#include "convolution/spread.h"
#include "core/parallel.h"
#include "onednn/engine.h"
#include "onednn/geometry.h"
#include "onednn/primitive.h"

namespace npu {
namespace {

using convolution::SpreadFn;

struct Plan {
  SpreadFn run = nullptr;
  std::int64_t images = 0, channels = 0, element = 0;
  std::int64_t rows = 0, columns = 0;  // of the product
  std::int64_t height = 0, width = 0;  // of the target
  std::int64_t row_step = 1, column_step = 1;
  std::int64_t image = 0, row = 0, pixel = 0;  // distances in bytes of the target
  bool add = false;
};

class BoundSpread : public BoundStep {
 public:
  explicit BoundSpread(const Plan& plan) : plan_(plan) {}

  void run(RunState&) override {
    const std::int64_t lines = plan_.images * (plan_.add ? plan_.rows : plan_.height);
    parallel_for(lines, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) plan_.add ? add_line(i) : fill_line(i);
    });
  }

  void* product = nullptr;
  void* target = nullptr;

 private:
  char* line(std::int64_t image, std::int64_t y) const {
    return static_cast<char*>(target) + image * plan_.image + y * plan_.row;
  }

  void put_line(std::int64_t source_line, char* to) const {
    const float* from = static_cast<const float*>(product) + source_line * plan_.columns * plan_.channels;
    for (std::int64_t x = 0; x < plan_.columns; ++x, from += plan_.channels) {
      plan_.run(from, plan_.channels, plan_.add, to + x * plan_.column_step * plan_.pixel);
    }
  }

  void add_line(std::int64_t i) const { put_line(i, line(i / plan_.rows, i % plan_.rows * plan_.row_step)); }

  void fill_line(std::int64_t i) const {
    const std::int64_t image = i / plan_.height, y = i % plan_.height;
    char* to = line(image, y);
    for (std::int64_t x = 0; x < plan_.width; ++x) {
      std::memset(to + x * plan_.pixel, 0, static_cast<std::size_t>(plan_.channels * plan_.element));
    }
    if (y % plan_.row_step == 0 && y / plan_.row_step < plan_.rows) {
      put_line(image * plan_.rows + y / plan_.row_step, to);
    }
  }

  const Plan& plan_;
};

class SpreadStep : public Step {
 public:
  SpreadStep(const Plan& plan, const Location& product, const Location& target)
      : plan_(plan), product_(product), target_(target) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundSpread>(plan_);
    binder.address(&bound->product, product_);
    binder.address(&bound->target, target_);
    return bound;
  }

 private:
  Plan plan_;
  Location product_, target_;
};

bool all_are(const Dims& list, std::int64_t value) {
  return std::all_of(list.begin(), list.end(), [&](std::int64_t v) { return v == value; });
}

bool is_strided_pointwise(const Lowering& low) {
  const Attrs& attrs = low.attrs();
  const View& x = low.input(0);
  const View& w = low.input(1);
  const View& y = low.output(0);
  const std::vector<std::string> post_ops = attrs.texts("post_ops");
  return x.dims.size() == 4 && w.dims.size() == 4 && y.dims.size() == 4 && w.dims[2] == 1 && w.dims[3] == 1 &&
         x.elements() > 0 && x.dims[0] == y.dims[0] && w.dims[0] == x.dims[1] && w.dims[1] == y.dims[1] &&
         x.dtype == y.dtype && w.dtype == x.dtype && y.strides[1] == 1 && attrs.integer("groups", 1) == 1 &&
         !all_are(attrs.integers("strides", {1, 1}), 1) && all_are(attrs.integers("pads_begin", {0}), 0) &&
         !attrs.flag("has_bias") && !attrs.has("src_scale") && !attrs.flag("has_weight_scales") &&
         (post_ops.empty() || (post_ops.size() == 1 && post_ops[0] == "sum"));
}

std::optional<Plan> make_plan(const Lowering& low) {
  if (!is_strided_pointwise(low)) return std::nullopt;
  const View& x = low.input(0);
  const View& y = low.output(0);
  const Dims steps = low.attrs().integers("strides", {1, 1});
  const auto size = static_cast<std::int64_t>(dtype_size(y.dtype));
  Plan plan;
  plan.run = convolution::spread(y.dtype);
  plan.images = y.dims[0];
  plan.channels = y.dims[1];
  plan.element = size;
  plan.rows = x.dims[2];
  plan.columns = x.dims[3];
  plan.height = y.dims[2];
  plan.width = y.dims[3];
  plan.row_step = steps[0];
  plan.column_step = steps[1];
  plan.image = y.strides[0] * size;
  plan.row = y.strides[2] * size;
  plan.pixel = y.strides[3] * size;
  plan.add = !low.attrs().texts("post_ops").empty();
  const bool fits = (plan.rows - 1) * steps[0] < plan.height && (plan.columns - 1) * steps[1] < plan.width;
  return plan.run && fits ? std::optional(plan) : std::nullopt;
}

}  // namespace

void lower_spread(Lowering& low) {
  const std::optional<Plan> plan = make_plan(low);
  if (!plan)
    low.reject("it is no strided 1x1 convolution, or this processor has no AVX-512 with bfloat16 products");
  const View& x = low.input(0);
  const View& w = low.input(1);
  const Desc source = describe(low, x), weights = weights_desc(low, w, 1, true);
  // In single precision: the sum with what is there is rounded once.
  const Desc product({x.dims[0], plan->channels, x.dims[2], x.dims[3]}, dnnl::memory::data_type::f32,
                     dnnl::memory::format_tag::acdb);
  using Deconvolution = dnnl::deconvolution_forward;
  const Deconvolution::primitive_desc desc(
      onednn_engine(), dnnl::prop_kind::forward_inference, dnnl::algorithm::deconvolution_direct, source,
      any_layout(weights), Desc(), product, Dims{1, 1}, Dims{0, 0}, Dims{0, 0}, Dims{0, 0}, base_attr());
  const Location place = low.scratch(product.get_size());
  PrimitivePlan primitive(low);
  primitive.read(DNNL_ARG_SRC, x, source, desc.src_desc());
  primitive.read(DNNL_ARG_WEIGHTS, w, weights, desc.weights_desc());
  primitive.add({DNNL_ARG_DST, product, place});
  const double flops = 2.0 * static_cast<double>(x.elements()) * static_cast<double>(plan->channels);
  primitive.finish<Deconvolution>(desc, layout_name(desc.src_desc()) + ",spread", flops);
  low.emit(std::make_unique<SpreadStep>(*plan, place, low.at(low.output(0))));
}

}  // namespace npu
