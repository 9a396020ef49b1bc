// Depthwise convolution tasks.
#include <omp.h>

#include <algorithm>

#include "convolution/depthwise_operands.h"
#include "convolution/lower.h"
#include "convolution/post_ops.h"
#include "core/parallel.h"

namespace npu {
namespace {

using namespace convolution;

struct Plan {
  Depthwise shape{};
  DepthwiseFn run = nullptr;
  std::int64_t bands = 1;
  std::int64_t grain = 1;

  std::int64_t units() const { return shape.batch * shape.blocks() * bands; }
};

struct Places {
  Location source, weights, target, buffers;
  std::optional<Location> bias, residual;
};

class BoundDepthwise : public BoundStep {
 public:
  explicit BoundDepthwise(const Plan& plan) : plan_(plan) {}

  void run(RunState&) override {
    const Depthwise& shape = plan_.shape;
    const DepthwiseData data{source, static_cast<const float*>(weights), static_cast<const float*>(bias),
                             residual, target};
    parallel_for(plan_.units(), plan_.grain, [&](std::int64_t begin, std::int64_t end) {
      auto* buffer =
          reinterpret_cast<float*>(static_cast<char*>(buffers) + omp_get_thread_num() * shape.buffer_bytes());
      for (std::int64_t unit = begin; unit < end; ++unit) {
        const std::int64_t block = unit % shape.blocks(), rest = unit / shape.blocks();
        const std::int64_t band = rest % plan_.bands;
        plan_.run(shape, data, rest / plan_.bands, block, band * shape.out_height / plan_.bands,
                  (band + 1) * shape.out_height / plan_.bands, buffer);
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
  const Plan& plan_;
};

class DepthwiseStep : public Step {
 public:
  DepthwiseStep(const Plan& plan, const Places& places) : plan_(plan), places_(places) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundDepthwise>(plan_);
    binder.address(&bound->source, places_.source);
    binder.address(&bound->weights, places_.weights);
    binder.address(&bound->target, places_.target);
    binder.address(&bound->buffers, places_.buffers);
    if (places_.bias) binder.address(&bound->bias, *places_.bias);
    if (places_.residual) binder.address(&bound->residual, *places_.residual);
    return bound;
  }

 private:
  Plan plan_;
  Places places_;
};

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

std::optional<Plan> make_plan(const Lowering& low, const Finish& finish) {
  const View& x = low.input(0);
  const View& y = low.output(0);
  const Dims pads = low.attrs().integers("pads_begin", {0, 0});
  const std::int64_t kernel = low.input(1).dims[2], stride = low.attrs().integers("strides", {1, 1})[0];
  Plan plan;
  plan.run = depthwise(x.dtype, kernel, stride);
  if (!plan.run || pads.size() != 2 || y.elements() == 0) return std::nullopt;
  Depthwise& s = plan.shape;
  s = depthwise_shape(x, y, kernel, stride, pads);
  s.epilogue = finish.epilogue;
  s.has_residual = finish.residual.has_value();
  const std::int64_t threads = omp_get_max_threads();
  const auto image_bytes = static_cast<std::int64_t>(x.bytes()) / s.batch;
  plan.bands = std::clamp<std::int64_t>(std::max(threads, image_bytes / kBandBytes), 1,
                                        std::max<std::int64_t>(s.out_height / kMinBandRows, 1));
  const double flops = 2.0 * static_cast<double>(y.elements() * s.kernel * s.kernel);
  plan.grain = flops < kMinFlops ? plan.units() : 1;
  return plan;
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
  const std::optional<Plan> plan = make_plan(low, *finish);
  if (!plan) low.reject("this processor has no kernel for its type, size and stride");
  const Depthwise& shape = plan->shape;
  low.describe("depthwise:avx512", "acdb",
               2.0 * static_cast<double>(low.output(0).elements() * shape.kernel * shape.kernel));
  Places places;
  places.source = low.at(low.input(0));
  places.target = low.at(low.output(0));
  places.weights = prepare_weights(low, shape);
  places.buffers = low.scratch(static_cast<std::size_t>(omp_get_max_threads() * shape.buffer_bytes()));
  if (has_bias) places.bias = low.at(low.input(2));
  if (finish->residual) places.residual = low.at(*finish->residual);
  low.emit(std::make_unique<DepthwiseStep>(*plan, places));
}

}  // namespace npu
