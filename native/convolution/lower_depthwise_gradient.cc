// Gradients of depthwise convolutions.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "convolution/depthwise_gradient.h"
#include "convolution/depthwise_operands.h"
#include "convolution/lower.h"
#include "core/parallel.h"

namespace npu {
namespace {

using namespace convolution;

struct Params {
  Depthwise shape{};
  DepthwiseWeights weights;
  std::int64_t bands = 1;
  std::int64_t parts = 1;         // of the work, one for a thread
  std::int64_t rows = 0;          // of an image, divided into bands
  std::int64_t buffer_bytes = 0;  // of a part

  std::int64_t units() const { return shape.batch * shape.blocks() * bands; }
  std::int64_t taps() const { return shape.kernel * shape.kernel; }
  std::int64_t packed_floats() const { return shape.blocks() * taps() * 16; }
};

// Calls body(image, block, first, last, part) for the bands and blocks of channels.
template <class Body>
void for_units(const Params& params, Body&& body) {
  parallel_for(params.parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      const std::int64_t last = params.units() * (part + 1) / params.parts;
      for (std::int64_t unit = params.units() * part / params.parts; unit < last; ++unit) {
        const std::int64_t block = unit % params.shape.blocks(), rest = unit / params.shape.blocks();
        const std::int64_t band = rest % params.bands;
        body(rest / params.bands, block, band * params.rows / params.bands,
             (band + 1) * params.rows / params.bands, part);
      }
    }
  });
}

struct Places {
  Location source, gradient, weights, packed, buffers;
};

class BoundGradient : public BoundStep {
 public:
  explicit BoundGradient(const Params& params) : params_(params) {}

  void bind(Binder& binder, const Places& places) {
    binder.address(&source_, places.source);
    binder.address(&gradient_, places.gradient);
    binder.address(&weights_, places.weights);
    binder.address(&packed_, places.packed);
    binder.address(&buffers_, places.buffers);
  }

 protected:
  float* packed() const { return static_cast<float*>(packed_); }
  float* buffer_of(std::int64_t part) const {
    return reinterpret_cast<float*>(static_cast<char*>(buffers_) + part * params_.buffer_bytes);
  }

  const Params& params_;
  void* source_ = nullptr;
  void* gradient_ = nullptr;
  void* weights_ = nullptr;

 private:
  void* packed_ = nullptr;
  void* buffers_ = nullptr;
};

class BoundSourceGradient : public BoundGradient {
 public:
  BoundSourceGradient(const Params& params, SourceGradientFn run) : BoundGradient(params), run_(run) {}

  void run(RunState&) override {
    params_.weights.pack(params_.shape, weights_, packed());
    const SourceGradientData data{gradient_, packed(), source_};
    for_units(params_, [&](auto image, auto block, auto first, auto last, auto part) {
      run_(params_.shape, data, image, block, first, last, buffer_of(part));
    });
  }

 private:
  SourceGradientFn run_;
};

class BoundWeightGradient : public BoundGradient {
 public:
  BoundWeightGradient(const Params& params, WeightSumsFn run) : BoundGradient(params), run_(run) {}

  // Every part sums over its pixels; then the partial sums are reduced.
  void run(RunState&) override {
    std::memset(packed(), 0,
                static_cast<std::size_t>(params_.parts * params_.packed_floats()) * sizeof(float));
    for_units(params_, [&](auto image, auto block, auto first, auto last, auto part) {
      float* const sums = packed() + part * params_.packed_floats() + block * params_.taps() * 16;
      run_(params_.shape, source_, gradient_, image, block, first, last, sums, buffer_of(part));
    });
    if (params_.weights.type == DType::Float32) {
      put(static_cast<float*>(weights_));
    } else {
      put(static_cast<BFloat16*>(weights_));
    }
  }

 private:
  template <class T>
  void put(T* to) const {
    for (std::int64_t c = 0; c < params_.shape.channels; ++c) {
      for (std::int64_t tap = 0; tap < params_.taps(); ++tap) {
        const float* const first = packed() + (c / 16 * params_.taps() + tap) * 16 + c % 16;
        float sum = 0.0f;
        for (std::int64_t part = 0; part < params_.parts; ++part)
          sum += first[part * params_.packed_floats()];
        to[params_.weights.at(c, tap, params_.shape.kernel)] = static_cast<T>(sum);
      }
    }
  }

  WeightSumsFn run_;
};

template <class Bound, class Fn>
class GradientStep : public Step {
 public:
  GradientStep(const Params& params, Fn run, const Places& places)
      : params_(params), run_(run), places_(places) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<Bound>(params_, run_);
    bound->bind(binder, places_);
    return bound;
  }

 private:
  Params params_;
  Fn run_;
  Places places_;
};

using SourceGradientStep = GradientStep<BoundSourceGradient, SourceGradientFn>;
using WeightGradientStep = GradientStep<BoundWeightGradient, WeightSumsFn>;

constexpr const char* kUnfit =
    "it is no gradient of a depthwise convolution that this processor has a kernel for";

bool is_square(const Dims& list) { return list.size() == 2 && list[0] == list[1]; }

// A depthwise convolution of `x` to `y` with weights `w`, channels last, in the kernels' form.
std::optional<Params> make_params(const Lowering& low, const View& x, const View& y, const View& w) {
  const Attrs& attrs = low.attrs();
  if (x.dims.size() != 4 || y.dims.size() != 4 || w.dims.size() != 4 || !x.elements() || !y.elements() ||
      x.dims[0] != y.dims[0]) {
    return std::nullopt;
  }
  const Dims strides = attrs.integers("strides", {1, 1}), dilations = attrs.integers("dilations", {1, 1});
  const Dims pads = attrs.integers("pads_begin", {0, 0});
  const std::int64_t channels = x.dims[1], kernel = w.dims[2];
  const bool depthwise = attrs.integer("groups", 1) == channels && channels > 1 && y.dims[1] == channels &&
                         w.dims[0] == channels && w.dims[1] == 1 && w.dims[3] == kernel;
  const bool plain = x.dtype == y.dtype && x.strides[1] == 1 && y.strides[1] == 1 && is_square(strides) &&
                     is_square(dilations) && dilations[0] == 1 && pads.size() == 2 &&
                     (w.dtype == DType::Float32 || w.dtype == DType::BFloat16);
  if (!depthwise || !plain || kernel > kMaxGradientKernel || std::max(pads[0], pads[1]) >= kernel ||
      std::min(pads[0], pads[1]) < 0) {
    return std::nullopt;
  }
  Params params;
  params.weights = DepthwiseWeights(w);
  params.shape = depthwise_shape(x, y, kernel, strides[0], pads);
  return params;
}

double flops_of(const Params& params) {
  const Depthwise& s = params.shape;
  return 2.0 * static_cast<double>(s.batch * s.channels * s.out_height * s.out_width * params.taps());
}

// Bands of rows that fit the second-level cache, and enough for all threads.
void share_out(Params& params, const View& x, std::int64_t rows, std::int64_t buffer_bytes) {
  const auto image_bytes = static_cast<std::int64_t>(x.bytes()) / params.shape.batch;
  params.rows = rows;
  params.buffer_bytes = buffer_bytes;
  params.bands =
      std::clamp<std::int64_t>(image_bytes / band_bytes(), 1, std::max<std::int64_t>(rows / kMinBandRows, 1));
  const bool shared = flops_of(params) * kFlopCycles >= wake_cycles();
  params.parts = shared ? std::min<std::int64_t>(omp_get_max_threads(), params.units()) : 1;
}

// Bytes of every part.
std::size_t for_all(const Params& params, std::int64_t bytes) {
  return static_cast<std::size_t>(params.parts * bytes);
}

}  // namespace

void lower_depthwise_source_gradient(Lowering& low) {
  const Attrs& attrs = low.attrs();
  if (!attrs.texts("post_ops").empty() || attrs.flag("has_bias") || attrs.has("src_scale") ||
      attrs.flag("has_weight_scales") || low.input_count() != 2) {
    low.reject("the kernel has no post-operations");
  }
  std::optional<Params> params = make_params(low, low.output(0), low.input(0), low.input(1));
  const SourceGradientFn run = params ? depthwise_source_gradient(low.input(0).dtype) : nullptr;
  if (!run) low.reject(kUnfit);
  share_out(*params, low.output(0), params->shape.height, GradientRows(params->shape).bytes());
  low.describe(with_vectors("depthwise_source_gradient"), "acdb", flops_of(*params));
  Places places;
  places.gradient = low.at(low.input(0));
  places.weights = low.at(low.input(1));
  places.source = low.at(low.output(0));
  places.packed = low.scratch(static_cast<std::size_t>(params->packed_floats()) * sizeof(float));
  places.buffers = low.scratch(for_all(*params, params->buffer_bytes));
  low.emit(std::make_unique<SourceGradientStep>(*params, run, places));
}

void lower_depthwise_weight_gradient(Lowering& low) {
  if (low.output_count() != 1) low.reject("the kernel has no gradient of a bias");
  std::optional<Params> params = make_params(low, low.input(0), low.input(1), low.output(0));
  const WeightSumsFn run =
      params ? depthwise_weight_sums(low.input(0).dtype, params->shape.kernel, params->shape.stride)
             : nullptr;
  if (!run) low.reject(kUnfit);
  share_out(*params, low.input(0), params->shape.out_height, params->shape.buffer_bytes());
  low.describe(with_vectors("depthwise_weight_gradient"), "acdb", flops_of(*params));
  Places places;
  places.source = low.at(low.input(0));
  places.gradient = low.at(low.input(1));
  places.weights = low.at(low.output(0));
  places.packed =
      low.scratch(for_all(*params, params->packed_floats() * static_cast<std::int64_t>(sizeof(float))));
  places.buffers = low.scratch(for_all(*params, params->buffer_bytes));
  low.emit(std::make_unique<WeightGradientStep>(*params, run, places));
}

}  // namespace npu
