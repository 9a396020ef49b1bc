// Depthwise convolution tasks.
#include <omp.h>

#include <algorithm>

#include "convolution/depthwise_operands.h"
#include "convolution/lower.h"
#include "convolution/post_ops.h"
#include "core/parallel.h"
#include "runtime/kernel_step.h"

namespace npu {
namespace {

using namespace convolution;

struct Params {
  Depthwise shape{};
  DepthwiseFn run = nullptr;
  std::int64_t bands = 1;
  std::int64_t grain = 1;

  std::int64_t units() const { return shape.batch * shape.blocks() * bands; }
};

class BoundDepthwise : public BoundStep {
 public:
  explicit BoundDepthwise(const Params& params) : params_(params) {}

  void run(RunState&) override {
    const Depthwise& shape = params_.shape;
    const DepthwiseData data{source, static_cast<const float*>(weights), static_cast<const float*>(bias),
                             residual, target};
    parallel_for(params_.units(), params_.grain, [&](std::int64_t begin, std::int64_t end) {
      auto* buffer =
          reinterpret_cast<float*>(static_cast<char*>(buffers) + omp_get_thread_num() * shape.buffer_bytes());
      for (std::int64_t unit = begin; unit < end; ++unit) {
        const std::int64_t block = unit % shape.blocks(), rest = unit / shape.blocks();
        const std::int64_t band = rest % params_.bands;
        params_.run(shape, data, rest / params_.bands, block, band * shape.out_height / params_.bands,
                    (band + 1) * shape.out_height / params_.bands, buffer);
      }
    });
  }

  void* source = nullptr;
  void* weights = nullptr;
  void* bias = nullptr;
  void* residual = nullptr;
  void* target = nullptr;
  void* buffers = nullptr;

 private:
  const Params& params_;
};

using DepthwiseStep = KernelStep<BoundDepthwise, Params>;

bool is_depthwise(const Lowering& low) {
  const Attrs& attrs = low.attrs();
  const View& w = low.input(1);
  const auto same = [&](const char* name, std::int64_t otherwise) {
    const Dims list = attrs.integers(name, {otherwise, otherwise});
    return list.size() == 2 && list[0] == list[1];
  };
  return attrs.integer("groups", 1) == low.input(0).dims[1] && low.output(0).dims[1] == w.dims[0] &&
         w.dims[0] == low.input(0).dims[1] && w.dims[2] == w.dims[3] && same("strides", 1) &&
         same("dilations", 1) && attrs.integers("dilations", {1, 1})[0] == 1;
}

std::optional<Params> make_params(const Lowering& low, const Finish& finish) {
  const View& x = low.input(0);
  const View& y = low.output(0);
  const Dims pads = low.attrs().integers("pads_begin", {0, 0});
  const std::int64_t kernel = low.input(1).dims[2], stride = low.attrs().integers("strides", {1, 1})[0];
  Params params;
  params.run = depthwise(x.dtype, kernel, stride);
  if (!params.run || pads.size() != 2 || y.elements() == 0) return std::nullopt;
  Depthwise& s = params.shape;
  s = depthwise_shape(x, y, kernel, stride, pads);
  s.epilogue = finish.epilogue;
  s.has_residual = finish.residual.has_value();
  const std::int64_t threads = omp_get_max_threads();
  const auto image_bytes = static_cast<std::int64_t>(x.bytes()) / s.batch;
  params.bands = std::clamp<std::int64_t>(std::max(threads, image_bytes / band_bytes()), 1,
                                          std::max<std::int64_t>(s.out_height / kMinBandRows, 1));
  const double flops = 2.0 * static_cast<double>(y.elements() * s.kernel * s.kernel);
  params.grain = flops * kFlopCycles < wake_cycles() ? params.units() : 1;
  return params;
}

Location prepare_weights(Lowering& low, const Depthwise& shape) {
  const View& w = low.input(1);
  const auto bytes =
      static_cast<std::size_t>(shape.blocks() * shape.kernel * shape.kernel * 16) * sizeof(float);
  return low.prepared(w, bytes, [shape, weights = DepthwiseWeights(w)](const char* from, char* to) {
    weights.pack(shape, from, reinterpret_cast<float*>(to));
  });
}

}  // namespace

void lower_depthwise(Lowering& low) {
  if (!has_plain_operands(low) || !is_depthwise(low) || low.attrs().flag("has_gate")) {
    low.reject("it is no depthwise convolution of channels-last images with constant weights");
  }
  const bool has_bias = low.attrs().flag("has_bias");
  const std::optional<Finish> finish = read_finish(low, has_bias ? 3 : 2);
  if (!finish || finish->next != low.input_count()) low.reject("the kernel has no such post-operations");
  const std::optional<Params> params = make_params(low, *finish);
  if (!params) low.reject("this processor has no kernel for its type, size and stride");
  const Depthwise& shape = params->shape;
  low.describe(with_vectors("depthwise"), "acdb",
               2.0 * static_cast<double>(low.output(0).elements() * shape.kernel * shape.kernel));
  DepthwiseStep::Places places;
  places.emplace_back(&BoundDepthwise::source, low.at(low.input(0)));
  places.emplace_back(&BoundDepthwise::target, low.at(low.output(0)));
  places.emplace_back(&BoundDepthwise::weights, prepare_weights(low, shape));
  places.emplace_back(&BoundDepthwise::buffers,
                      low.scratch(static_cast<std::size_t>(omp_get_max_threads() * shape.buffer_bytes())));
  if (has_bias) places.emplace_back(&BoundDepthwise::bias, low.at(low.input(2)));
  if (finish->residual) places.emplace_back(&BoundDepthwise::residual, low.at(*finish->residual));
  low.emit(std::make_unique<DepthwiseStep>(*params, std::move(places)));
}

}  // namespace npu
