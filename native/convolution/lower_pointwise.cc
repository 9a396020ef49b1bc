// 1x1 convolution tasks.
#include <omp.h>

#include <algorithm>

#include "convolution/lower.h"
#include "convolution/pointwise.h"
#include "convolution/post_ops.h"
#include "core/parallel.h"
#include "runtime/kernel_step.h"

namespace npu {
namespace {

using namespace convolution;

constexpr std::int64_t kRowBlock = 8;

struct Params {
  Pointwise shape{};
  PointwiseFn run = nullptr;
  std::int64_t buffer_bytes = 0;
  bool by_rows = true;  // threads divide the rows, not the outputs
};

class BoundPointwise : public BoundStep {
 public:
  explicit BoundPointwise(const Params& params) : params_(params) {}

  void run(RunState&) override {
    const Pointwise& shape = params_.shape;
    const PointwiseData data{source, weights, static_cast<const float*>(bias), residual, gate, target};
    const auto buffer = [&] {
      return static_cast<char*>(buffers) + omp_get_thread_num() * params_.buffer_bytes;
    };
    if (params_.by_rows) {
      const std::int64_t blocks = (shape.rows() + kRowBlock - 1) / kRowBlock;
      parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
        params_.run(shape, data, begin * kRowBlock, std::min(end * kRowBlock, shape.rows()), 0,
                    shape.panels(), buffer());
      });
    } else {
      parallel_for(shape.panels(), 1, [&](std::int64_t begin, std::int64_t end) {
        params_.run(shape, data, 0, shape.rows(), begin, end, buffer());
      });
    }
  }

  void* source = nullptr;
  void* weights = nullptr;
  void* bias = nullptr;
  void* residual = nullptr;
  void* gate = nullptr;
  void* target = nullptr;
  void* buffers = nullptr;

 private:
  const Params& params_;
};

using PointwiseStep = KernelStep<BoundPointwise, Params>;

bool all_are(const Dims& list, std::int64_t value) {
  return std::all_of(list.begin(), list.end(), [&](std::int64_t v) { return v == value; });
}

// True if all pixels are equidistant across rows and images.
bool is_dense(const View& view) {
  return (view.dims[3] == 1 || view.strides[2] == view.strides[3] * view.dims[3]) &&
         (view.dims[0] == 1 || view.strides[0] == view.strides[3] * view.dims[3] * view.dims[2]);
}

bool is_pointwise(const Lowering& low) {
  const Attrs& attrs = low.attrs();
  const View& x = low.input(0);
  const View& w = low.input(1);
  const View& y = low.output(0);
  return x.dims[2] == y.dims[2] && x.dims[3] == y.dims[3] && w.dims[0] == y.dims[1] &&
         w.dims[1] == x.dims[1] && w.dims[2] == 1 && w.dims[3] == 1 && attrs.integer("groups", 1) == 1 &&
         all_are(attrs.integers("strides", {1}), 1) && all_are(attrs.integers("pads_begin", {0}), 0) &&
         all_are(attrs.integers("pads_end", {0}), 0) && is_dense(x) && is_dense(y);
}

// One number for each image and channel, dense.
bool is_gate(const Lowering& low, const View& gate) {
  const View& x = low.input(0);
  return gate.dims.size() == 4 && gate.dims[0] == x.dims[0] && gate.dims[1] == x.dims[1] &&
         gate.elements() == x.dims[0] * x.dims[1] && gate.dtype == x.dtype && gate.strides[1] == 1 &&
         (gate.dims[0] == 1 || gate.strides[0] == gate.dims[1]);
}

}  // namespace

void lower_pointwise(Lowering& low) {
  if (!has_plain_operands(low) || !is_pointwise(low)) {
    low.reject("it is no 1x1 convolution of dense channels-last images with constant weights");
  }
  const View& x = low.input(0);
  const View& y = low.output(0);
  const bool has_bias = low.attrs().flag("has_bias"), gated = low.attrs().flag("has_gate");
  const std::size_t gate = has_bias ? 3 : 2;
  const std::optional<Finish> finish = read_finish(low, gate + (gated ? 1 : 0));
  if (!finish || finish->next != low.input_count() || (gated && !is_gate(low, low.input(gate)))) {
    low.reject("the kernel has no such gate or post-operations");
  }
  Params params;
  params.run = pointwise(x.dtype);
  const bool pairs = x.dtype == DType::Float32 || x.dims[1] % 2 == 0;
  params.shape = {y.dims[0],    y.dims[2] * y.dims[3], x.dims[1],        y.dims[1],
                  x.strides[3], y.strides[3],          finish->epilogue, finish->residual.has_value(),
                  gated};
  params.shape.chunk = pointwise_chunk(params.shape, x.dtype);
  const std::int64_t rows = params.shape.rows();
  if (!params.run) low.reject("our 1x1 convolutions need AVX2, for bfloat16 its products of AVX-512");
  if (!pairs || rows == 0) low.reject("channels of bfloat16 come in pairs, and there are results");
  params.by_rows = low.attrs().flag("by_rows", true);
  params.buffer_bytes = (pointwise_buffer_bytes(params.shape, x.dtype) + 63) / 64 * 64;
  low.describe(with_vectors("pointwise"), "acdb",
               2.0 * static_cast<double>(rows * params.shape.depth * params.shape.outputs));
  PointwiseStep::Places places;
  places.emplace_back(&BoundPointwise::source, low.at(x));
  places.emplace_back(&BoundPointwise::target, low.at(y));
  const View& w = low.input(1);
  const std::int64_t outputs = w.dims[0], depth = w.dims[1], across = w.strides[0], down = w.strides[1];
  const DType type = w.dtype;
  places.emplace_back(&BoundPointwise::weights,
                      low.prepared(w, static_cast<std::size_t>(packed_bytes(type, outputs, depth)),
                                   [=](const char* from, char* to) {
                                     pack_pointwise(type, from, outputs, depth, across, down, to);
                                   }));
  if (has_bias) places.emplace_back(&BoundPointwise::bias, low.at(low.input(2)));
  if (finish->residual) places.emplace_back(&BoundPointwise::residual, low.at(*finish->residual));
  if (gated) {
    places.emplace_back(&BoundPointwise::gate, low.at(low.input(gate)));
    places.emplace_back(&BoundPointwise::buffers,
                        low.scratch(static_cast<std::size_t>(omp_get_max_threads() * params.buffer_bytes)));
  }
  low.emit(std::make_unique<PointwiseStep>(params, std::move(places)));
}

}  // namespace npu
