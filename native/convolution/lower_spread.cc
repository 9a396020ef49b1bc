// Transposed 1x1 convolutions with strides: a matrix product, then a scatter of its pixels.
#include <algorithm>
#include <cstring>
#include <optional>

#include "convolution/lower.h"
#include "convolution/spread.h"
#include "core/parallel.h"
#include "onednn/engine.h"
#include "onednn/geometry.h"
#include "onednn/primitive.h"
#include "runtime/kernel_step.h"

namespace npu {
namespace {

using convolution::SpreadFn;

struct Params {
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
  explicit BoundSpread(const Params& params) : params_(params) {}

  void run(RunState&) override {
    const std::int64_t lines = params_.images * (params_.add ? params_.rows : params_.height);
    parallel_for(lines, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) params_.add ? add_line(i) : fill_line(i);
    });
  }

  void* product = nullptr;
  void* target = nullptr;

 private:
  char* line(std::int64_t image, std::int64_t y) const {
    return static_cast<char*>(target) + image * params_.image + y * params_.row;
  }

  void put_line(std::int64_t source_line, char* to) const {
    const float* from = static_cast<const float*>(product) + source_line * params_.columns * params_.channels;
    for (std::int64_t x = 0; x < params_.columns; ++x, from += params_.channels) {
      params_.run(from, params_.channels, params_.add, to + x * params_.column_step * params_.pixel);
    }
  }

  void add_line(std::int64_t i) const {
    put_line(i, line(i / params_.rows, i % params_.rows * params_.row_step));
  }

  void fill_line(std::int64_t i) const {
    const std::int64_t image = i / params_.height, y = i % params_.height;
    char* to = line(image, y);
    for (std::int64_t x = 0; x < params_.width; ++x) {
      std::memset(to + x * params_.pixel, 0, static_cast<std::size_t>(params_.channels * params_.element));
    }
    if (y % params_.row_step == 0 && y / params_.row_step < params_.rows) {
      put_line(image * params_.rows + y / params_.row_step, to);
    }
  }

  const Params& params_;
};

using SpreadStep = KernelStep<BoundSpread, Params>;

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

std::optional<Params> make_params(const Lowering& low) {
  if (!is_strided_pointwise(low)) return std::nullopt;
  const View& x = low.input(0);
  const View& y = low.output(0);
  const Dims steps = low.attrs().integers("strides", {1, 1});
  const auto size = static_cast<std::int64_t>(dtype_size(y.dtype));
  Params params;
  params.run = convolution::spread(y.dtype);
  params.images = y.dims[0];
  params.channels = y.dims[1];
  params.element = size;
  params.rows = x.dims[2];
  params.columns = x.dims[3];
  params.height = y.dims[2];
  params.width = y.dims[3];
  params.row_step = steps[0];
  params.column_step = steps[1];
  params.image = y.strides[0] * size;
  params.row = y.strides[2] * size;
  params.pixel = y.strides[3] * size;
  params.add = !low.attrs().texts("post_ops").empty();
  const bool fits =
      (params.rows - 1) * steps[0] < params.height && (params.columns - 1) * steps[1] < params.width;
  return params.run && fits ? std::optional(params) : std::nullopt;
}

}  // namespace

void lower_spread(Lowering& low) {
  const std::optional<Params> params = make_params(low);
  if (!params)
    low.reject(
        "it is no strided 1x1 convolution, or this processor has no AVX2, or for bfloat16 no products of it");
  const View& x = low.input(0);
  const View& w = low.input(1);
  const Desc source = describe(low, x), weights = weights_desc(low, w, 1, true);
  // In single precision, so that accumulation rounds once.
  const Desc product({x.dims[0], params->channels, x.dims[2], x.dims[3]}, dnnl::memory::data_type::f32,
                     dnnl::memory::format_tag::acdb);
  using Deconvolution = dnnl::deconvolution_forward;
  const Deconvolution::primitive_desc desc(
      onednn_engine(), dnnl::prop_kind::forward_inference, dnnl::algorithm::deconvolution_direct, source,
      any_layout(weights), Desc(), product, Dims{1, 1}, Dims{0, 0}, Dims{0, 0}, Dims{0, 0}, base_attr());
  const Location place = low.scratch(product.get_size());
  PrimitiveBuilder primitive(low);
  primitive.read(DNNL_ARG_SRC, x, source, desc.src_desc());
  primitive.read(DNNL_ARG_WEIGHTS, w, weights, desc.weights_desc());
  primitive.add({DNNL_ARG_DST, product, place});
  const double flops = 2.0 * static_cast<double>(x.elements()) * static_cast<double>(params->channels);
  primitive.finish<Deconvolution>(desc, layout_name(desc.src_desc()) + ",spread", flops);
  low.emit(std::make_unique<SpreadStep>(
      *params,
      SpreadStep::Places{{&BoundSpread::product, place}, {&BoundSpread::target, low.at(low.output(0))}}));
}

}  // namespace npu
