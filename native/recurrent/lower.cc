// LSTM tasks of small batches.
#include "recurrent/lower.h"

#include <algorithm>
#include <optional>

#include "core/errors.h"
#include "core/half.h"
#include "core/parallel.h"
#include "onednn/engine.h"
#include "onednn/primitive.h"
#include "recurrent/lstm.h"
#include "threads/steps.h"

namespace npu {
namespace {

using recurrent::kGates;
using recurrent::kMaxBatch;
using recurrent::kUnits;
using recurrent::LstmStep;
using recurrent::LstmStepFn;

constexpr double kFlopCycles = 1.2;  // few rows: weights are used once after they are read

// A caller's operand: location and element type.
struct Tensor {
  Location where;
  DType type = DType::Float32;
};

struct Layer {
  std::int64_t steps = 0, batch = 0, inputs = 0, hidden = 0, directions = 0;
  bool reversed = false;
  LstmStepFn step = nullptr;
  std::int64_t grain = 1;  // minimum number of blocks per thread

  std::int64_t state() const { return batch * hidden; }
  std::int64_t projected() const { return steps * batch * kGates * hidden; }
};

// Widens or narrows between the caller's element type and float.
void read(const void* from, DType type, float* to, std::int64_t count) {
  if (type == DType::Float32) {
    std::copy_n(static_cast<const float*>(from), count, to);
    return;
  }
  const auto* halves = static_cast<const BFloat16*>(from);
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(halves[i]);
}

void write(const float* from, std::int64_t count, DType type, void* to, std::int64_t at) {
  if (type == DType::Float32) {
    std::copy_n(from, count, static_cast<float*>(to) + at);
    return;
  }
  auto* halves = static_cast<BFloat16*>(to) + at;
  for (std::int64_t i = 0; i < count; ++i) halves[i] = BFloat16(from[i]);
}

struct Types {
  DType y, h0, c0, h_n, c_n;
};

class BoundLstm : public BoundStep {
 public:
  BoundLstm(const Layer& layer, const Types& types, const std::string& task)
      : layer_(layer), types_(types), task_(task) {}

  void run(RunState& state) override {
    for (std::int64_t d = 0; d < layer_.directions; ++d) {
      const auto& args = project_args[d];
      const dnnl_status_t status =
          dnnl_primitive_execute(project, state.stream, static_cast<int>(args.size()), args.data());
      if (status != dnnl_success) throw TaskError(task_, "oneDNN failed in the projection");
      walk(d);
    }
  }

  void* y = nullptr;
  void* h0 = nullptr;
  void* c0 = nullptr;
  void* h_n = nullptr;
  void* c_n = nullptr;
  void* projected = nullptr;
  void* work = nullptr;
  void* weights[2] = {nullptr, nullptr};
  dnnl_primitive_t project = nullptr;
  std::vector<dnnl_exec_arg_t> project_args[2];

 private:
  // float: c, h and its successor; bfloat16: the same two of h.
  void walk(std::int64_t direction) {
    const std::int64_t size = layer_.state();
    auto* c = static_cast<float*>(work);
    float* h[2] = {c + size, c + 2 * size};
    auto* halves = reinterpret_cast<std::uint16_t*>(c + 3 * size);
    std::uint16_t* h16[2] = {halves, halves + size};
    start(h0, types_.h0, direction, h[0]);
    start(c0, types_.c0, direction, c);
    for (std::int64_t i = 0; i < size; ++i) h16[0][i] = BFloat16(h[0][i]).bits;

    const bool backwards = direction == 1 || layer_.reversed;
    const std::int64_t blocks = layer_.hidden / kUnits;
    run_steps(layer_.steps, blocks, layer_.grain, [&](std::int64_t t, std::int64_t first, std::int64_t last) {
      const std::int64_t time = backwards ? layer_.steps - 1 - t : t;
      const int now = static_cast<int>(t % 2), next = 1 - now;
      const LstmStep step{layer_.batch,
                          layer_.hidden,
                          static_cast<const float*>(projected) + time * layer_.batch * kGates * layer_.hidden,
                          weights[direction],
                          h[now],
                          h16[now],
                          c,
                          h[next],
                          h16[next]};
      layer_.step(step, first, last, t % 2 == 1);
      publish(h[next], time, direction, first * kUnits, (last - first) * kUnits);
    });
    finish(h[layer_.steps % 2], types_.h_n, direction, h_n);
    finish(c, types_.c_n, direction, c_n);
  }

  void start(const void* from, DType type, std::int64_t direction, float* to) const {
    const std::int64_t size = layer_.state();
    if (!from) {
      std::fill_n(to, size, 0.0f);
      return;
    }
    const auto step = static_cast<std::size_t>(direction * size) * dtype_size(type);
    read(static_cast<const char*>(from) + step, type, to, size);
  }

  void finish(const float* from, DType type, std::int64_t direction, void* to) const {
    if (to) write(from, layer_.state(), type, to, direction * layer_.state());
  }

  void publish(const float* h, std::int64_t time, std::int64_t direction, std::int64_t unit,
               std::int64_t units) const {
    for (std::int64_t n = 0; n < layer_.batch; ++n) {
      const std::int64_t row = (time * layer_.batch + n) * layer_.directions + direction;
      write(h + n * layer_.hidden + unit, units, types_.y, y, row * layer_.hidden + unit);
    }
  }

  const Layer& layer_;
  const Types& types_;
  const std::string& task_;
};

struct Places {
  Location x, y, projected, work, scratchpad;
  Location project_weights[2], project_bias[2], weights[2];
  std::optional<Location> h0, c0, h_n, c_n;
};

class LstmStepTask : public Step {
 public:
  LstmStepTask(Layer layer, Types types, Places places, dnnl::matmul::primitive_desc desc, std::string task)
      : layer_(layer),
        types_(types),
        places_(places),
        desc_(std::move(desc)),
        primitive_(desc_),
        task_(std::move(task)) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundLstm>(layer_, types_, task_);
    binder.address(&bound->y, places_.y);
    binder.address(&bound->projected, places_.projected);
    binder.address(&bound->work, places_.work);
    const auto optional = [&](void** slot, const std::optional<Location>& where) {
      if (where) binder.address(slot, *where);
    };
    optional(&bound->h0, places_.h0);
    optional(&bound->c0, places_.c0);
    optional(&bound->h_n, places_.h_n);
    optional(&bound->c_n, places_.c_n);
    bound->project = primitive_.get();
    for (std::int64_t d = 0; d < layer_.directions; ++d) {
      binder.address(&bound->weights[d], places_.weights[d]);
      auto& args = bound->project_args[d];
      args.push_back({DNNL_ARG_SRC, binder.memory(desc_.src_desc(), places_.x)});
      args.push_back({DNNL_ARG_WEIGHTS, binder.memory(desc_.weights_desc(), places_.project_weights[d])});
      args.push_back({DNNL_ARG_BIAS, binder.memory(desc_.bias_desc(), places_.project_bias[d])});
      args.push_back({DNNL_ARG_DST, binder.memory(desc_.dst_desc(), places_.projected)});
      if (desc_.scratchpad_desc().get_size()) {
        args.push_back({DNNL_ARG_SCRATCHPAD, binder.memory(desc_.scratchpad_desc(), places_.scratchpad)});
      }
    }
    return bound;
  }

 private:
  Layer layer_;
  Types types_;
  Places places_;
  dnnl::matmul::primitive_desc desc_;
  dnnl::matmul primitive_;
  std::string task_;
};

// The views of a layer with an initial state, weights and a bias, as ge lays them out.
struct Views {
  explicit Views(const Lowering& low)
      : x(low.input(0)),
        h0(low.input(1)),
        c0(low.input(2)),
        w(low.input(3)),
        r(low.input(4)),
        bias(low.input(5)),
        y(low.output(0)) {}

  const View &x, &h0, &c0, &w, &r, &bias, &y;
};

bool is_small_float(DType type) { return type == DType::Float32 || type == DType::BFloat16; }

std::optional<Layer> make_layer(const Lowering& low) {
  const Attrs& attrs = low.attrs();
  const std::string direction = attrs.text("direction", "forward");
  if (attrs.text("cell") != "lstm" || !attrs.flag("has_initial", true) || !attrs.flag("has_bias", true) ||
      low.input_count() != 6 || direction == "bidirectional_sum") {
    return std::nullopt;
  }
  const Views v(low);
  if (v.x.dims.size() != 3 || v.w.dims.size() != 5 || v.w.dims[0] != 1 || v.w.dims[3] != kGates)
    return std::nullopt;
  Layer layer{v.x.dims[0], v.x.dims[1], v.x.dims[2], v.w.dims[4], v.w.dims[1], direction == "reverse"};
  for (const View* view : {&v.x, &v.h0, &v.c0, &v.w, &v.r, &v.bias, &v.y}) {
    if (!view->contiguous() || !is_small_float(view->dtype)) return std::nullopt;
  }
  for (const View& view : low.task().outputs) {
    if (!view.contiguous() || !is_small_float(view.dtype)) return std::nullopt;
  }
  const bool constant = low.is_constant(v.w) && low.is_constant(v.r) && low.is_constant(v.bias);
  const bool fits = layer.batch >= 1 && layer.batch <= kMaxBatch && layer.hidden % kUnits == 0 &&
                    layer.steps > 0 && layer.inputs > 0 && v.x.dtype == v.w.dtype && v.w.dtype == v.r.dtype;
  layer.step = recurrent::lstm_step(v.r.dtype);
  const std::int64_t block = 2 * layer.batch * kGates * kUnits * layer.hidden;
  layer.grain = grain(kFlopCycles, block);
  return constant && fits && layer.step ? std::optional(layer) : std::nullopt;
}

// One direction of a constant.
View direction_of(const View& view, std::int64_t direction, Dims dims) {
  View part = view;
  part.offset += direction * view.strides[1];
  part.dims = std::move(dims);
  part.strides = contiguous_strides(part.dims);
  return part;
}

// A constant bias as float32.
Location wide_bias(Lowering& low, const View& bias) {
  if (bias.dtype == DType::Float32) return low.at(bias);
  const std::int64_t count = bias.elements();
  const DType type = bias.dtype;
  return low.prepared(bias, static_cast<std::size_t>(count) * sizeof(float), [=](const char* from, char* to) {
    read(from, type, reinterpret_cast<float*>(to), count);
  });
}

dnnl::matmul::primitive_desc projection(const Lowering& low, const Layer& layer, DType type) {
  using Tag = dnnl::memory::format_tag;
  const std::int64_t rows = layer.steps * layer.batch, columns = kGates * layer.hidden;
  const auto narrow = onednn_type(low, type), wide = dnnl::memory::data_type::f32;
  return {onednn_engine(),
          Desc({rows, layer.inputs}, narrow, Tag::ab),
          Desc({layer.inputs, columns}, narrow, Tag::any),
          Desc({1, columns}, wide, Tag::ab),
          Desc({rows, columns}, wide, Tag::ab),
          base_attr()};
}

}  // namespace

void lower_small_lstm(Lowering& low) {
  if (!recurrent::lstm_step(DType::Float32))
    low.reject("it needs AVX2, for bfloat16 its products of AVX-512");
  const std::optional<Layer> layer = make_layer(low);
  if (!layer) low.reject("it is no LSTM of up to four rows with constant weights and blocks of 16 units");
  const Views v(low);
  const double flops = 2.0 * static_cast<double>(layer->steps * layer->batch) *
                       static_cast<double>(v.w.elements() + v.r.elements());
  low.describe(with_vectors("small_batch"), "", flops);

  const std::int64_t hidden = layer->hidden;
  const DType type = v.r.dtype;
  auto desc = projection(low, *layer, v.x.dtype);
  const Desc plain({layer->inputs, kGates * hidden}, onednn_type(low, type), dnnl::memory::format_tag::ab);
  Places places;
  places.x = low.at(v.x);
  places.y = low.at(v.y);
  for (std::int64_t d = 0; d < layer->directions; ++d) {
    const View w = direction_of(v.w, d, {layer->inputs, kGates * hidden});
    const View r = direction_of(v.r, d, {hidden, kGates, hidden});
    places.project_weights[d] = low.packed(w, plain, desc.weights_desc());
    places.project_bias[d] = wide_bias(low, direction_of(v.bias, d, {kGates, hidden}));
    places.weights[d] = low.prepared(r, r.bytes(), [type, hidden](const char* from, char* to) {
      recurrent::pack_lstm_weights(type, from, hidden, to);
    });
  }
  places.projected = low.scratch(static_cast<std::size_t>(layer->projected()) * sizeof(float));
  places.work =
      low.scratch(static_cast<std::size_t>(layer->state()) * (3 * sizeof(float) + 2 * sizeof(std::uint16_t)));
  places.scratchpad = low.scratch(desc.scratchpad_desc().get_size());
  places.h0 = low.at(v.h0);
  places.c0 = low.at(v.c0);
  Types types{v.y.dtype, v.h0.dtype, v.c0.dtype, DType::Float32, DType::Float32};
  if (low.output_count() > 1) {
    places.h_n = low.at(low.output(1));
    types.h_n = low.output(1).dtype;
  }
  if (low.output_count() > 2) {
    places.c_n = low.at(low.output(2));
    types.c_n = low.output(2).dtype;
  }
  low.emit(std::make_unique<LstmStepTask>(*layer, types, places, std::move(desc), low.task().name));
}

}  // namespace npu
