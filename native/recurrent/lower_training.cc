// Task kinds "lstm_steps" and "lstm_steps_grad": all steps of an LSTM layer in training, and back through
// them.
#include <algorithm>
#include <array>
#include <memory>

#include "core/half.h"
#include "core/loops.h"
#include "recurrent/lstm.h"
#include "recurrent/training.h"
#include "runtime/lowering.h"
#include "threads/steps.h"

namespace npu {
namespace {

using recurrent::BackStep;
using recurrent::ForwardStep;
using recurrent::kGates;
using recurrent::kKept;
using recurrent::kUnits;
using recurrent::TrainingKernels;

constexpr double kFlopCycles = 0.25;  // weights come from the caches

enum Place : std::uint8_t {
  kGatesOf,  // forward: what the input adds to the gates; back: gradients of the gates
  kWeights,
  kFirstH,  // forward: the state before the first step; back: the gradient of that after the last one
  kFirstC,
  kY,  // back: its gradient
  kKeptOf,
  kLastH,
  kLastC,
  kPlaces
};

struct Operand {
  bool given = false;
  Location where;
};

struct Layer {
  const TrainingKernels* kernels = nullptr;
  DType type = DType::Float32;
  std::int64_t steps = 0, batch = 0, hidden = 0;
  bool reverse = false;
  std::int64_t grain = 1;  // minimum number of blocks per thread
  std::array<Operand, kPlaces> operands;
  Location packed;

  std::int64_t state() const { return batch * hidden; }
  double flops() const { return 2.0 * static_cast<double>(steps * batch * kGates * hidden * hidden); }
};

class BoundSteps : public BoundStep {
 public:
  explicit BoundSteps(const Layer& layer) : layer_(layer) {}

  void run(RunState&) override {
    start(kFirstC, kLastC);
    prepare();
    const std::int64_t blocks = layer_.hidden / kUnits;
    run_steps(1 + count(), blocks, layer_.grain, [&](std::int64_t i, std::int64_t first, std::int64_t last) {
      i == 0 ? pack(first, last) : step(i - 1, first, last, i % 2 == 0);
    });
  }

  std::array<void*, kPlaces> at{};
  void* packed = nullptr;

 protected:
  virtual void prepare() {}
  virtual std::int64_t count() const { return layer_.steps; }
  virtual void pack(std::int64_t first, std::int64_t last) = 0;
  virtual void step(std::int64_t index, std::int64_t first, std::int64_t last, bool backwards) = 0;

  bool given(Place place) const { return layer_.operands[place].given; }
  float* floats(Place place) const { return static_cast<float*>(at[place]); }

  // An operand's row of a step: `values` per unit, in the weights' type.
  char* row(Place place, std::int64_t step, std::int64_t values) const {
    if (!given(place)) return nullptr;
    const auto bytes = static_cast<std::int64_t>(dtype_size(layer_.type));
    return static_cast<char*>(at[place]) + step * values * layer_.state() * bytes;
  }

  // The initial state as float32 if the steps change it; zero if absent.
  void start(Place from, Place to) const {
    const std::int64_t size = layer_.state();
    if (!given(from)) {
      std::fill_n(floats(to), size, 0.0f);
    } else if (layer_.type == DType::Float32) {
      std::copy_n(floats(from), size, floats(to));
    } else {
      const auto* halves = static_cast<const BFloat16*>(at[from]);
      for (std::int64_t i = 0; i < size; ++i) floats(to)[i] = static_cast<float>(halves[i]);
    }
  }

  const Layer& layer_;
};

class BoundForward : public BoundSteps {
 public:
  using BoundSteps::BoundSteps;

 private:
  void pack(std::int64_t first, std::int64_t last) override {
    layer_.kernels->pack_forward(at[kWeights], layer_.hidden, packed, first, last);
  }

  void step(std::int64_t index, std::int64_t first, std::int64_t last, bool backwards) override {
    const std::int64_t end = layer_.steps - 1, time = layer_.reverse ? end - index : index;
    const std::int64_t earlier = layer_.reverse ? time + 1 : time - 1;
    const ForwardStep step{layer_.batch,
                           layer_.hidden,
                           packed,
                           floats(kGatesOf) + time * kGates * layer_.state(),
                           index ? row(kY, earlier, 1) : at[kFirstH],
                           floats(kLastC),
                           floats(kLastH),
                           row(kY, time, 1),
                           row(kKeptOf, time, kKept)};
    layer_.kernels->forward(step, first, last, backwards);
  }
};

class BoundBack : public BoundSteps {
 public:
  using BoundSteps::BoundSteps;

 private:
  void prepare() override { start(kFirstH, kLastH); }
  std::int64_t count() const override { return layer_.steps + 1; }  // the last is for the initial state only

  void pack(std::int64_t first, std::int64_t last) override {
    layer_.kernels->pack_back(at[kWeights], layer_.hidden, packed, first, last);
  }

  void step(std::int64_t index, std::int64_t first, std::int64_t last, bool backwards) override {
    const std::int64_t end = layer_.steps - 1, time = layer_.reverse ? index : end - index;
    const std::int64_t later = layer_.reverse ? time - 1 : time + 1;
    const bool further = index <= end;
    const BackStep step{layer_.batch,
                        layer_.hidden,
                        packed,
                        index ? row(kGatesOf, later, kGates) : nullptr,
                        further ? row(kY, time, 1) : nullptr,
                        further ? row(kKeptOf, time, kKept) : nullptr,
                        floats(kLastH),
                        floats(kLastC),
                        further ? row(kGatesOf, time, kGates) : nullptr};
    layer_.kernels->back(step, first, last, backwards);
  }
};

template <class Bound>
class StepsTask : public Step {
 public:
  explicit StepsTask(const Layer& layer) : layer_(layer) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<Bound>(layer_);
    for (std::size_t i = 0; i < kPlaces; ++i) {
      if (layer_.operands[i].given) binder.address(&bound->at[i], layer_.operands[i].where);
    }
    binder.address(&bound->packed, layer_.packed);
    return bound;
  }

 private:
  Layer layer_;
};

// Reads a task's operands one after another into a layer, whose sizes the weights and `gates` tell.
class Reader {
 public:
  Reader(Lowering& low, const View& weights, const View& gates) : low_(low) {
    layer.kernels = recurrent::training_kernels(weights.dtype);
    if (!layer.kernels) low.reject("this machine has no kernel for it");
    if (weights.dims.size() != 2 || gates.dims.size() != 3) low.reject("the shapes do not fit");
    layer.type = weights.dtype;
    layer.steps = gates.dims[0];
    layer.batch = gates.dims[1];
    layer.hidden = weights.dims[1];
    layer.reverse = low.attrs().flag("reverse");
    if (layer.hidden <= 0 || layer.hidden % kUnits || weights.dims[0] != kGates * layer.hidden) {
      low.reject("there are four gates of whole blocks of 16 units");
    }
    if (layer.steps <= 0 || layer.batch <= 0) low.reject("there are no steps");
    const double block = layer.flops() / static_cast<double>(layer.steps * layer.hidden / kUnits);
    layer.grain = grain(kFlopCycles, static_cast<std::int64_t>(block));
  }

  void input(Place place, std::int64_t elements, bool wide = false) {
    operand(place, low_.input(input_++), elements, wide);
  }
  void optional_input(Place place, const char* flag, std::int64_t elements) {
    if (low_.attrs().flag(flag)) input(place, elements);
  }
  void output(Place place, std::int64_t elements, bool wide = false) {
    operand(place, low_.output(output_++), elements, wide);
  }
  std::int64_t all(std::int64_t values) const { return layer.steps * values * layer.state(); }

  template <class Bound>
  void finish() {
    if (input_ != low_.input_count() || output_ != low_.output_count()) {
      low_.reject("it has operands that no attribute names");
    }
    low_.describe(with_vectors("steps"), "", layer.flops());
    const std::int64_t elements = kGates * layer.hidden * layer.hidden;
    layer.packed = low_.scratch(static_cast<std::size_t>(elements) * dtype_size(layer.type));
    low_.emit(std::make_unique<StepsTask<Bound>>(layer));
  }

  Layer layer;

 private:
  void operand(Place place, const View& view, std::int64_t elements, bool wide) {
    if (view.elements() != elements) low_.reject("the shapes do not fit");
    if (!view.contiguous()) low_.reject("elements must be contiguous");
    if (view.dtype != (wide ? DType::Float32 : layer.type)) low_.reject("operands have different types");
    layer.operands[place] = {true, low_.at(view)};
  }

  Lowering& low_;
  std::size_t input_ = 0, output_ = 0;
};

// Inputs: gates (T, N, 4 * H) float32, weights (4 * H, H), h and c (N, H).
// Outputs: y (T, N, H), kept (T, N, 5 * H), the last h and c (N, H) float32.
void lower_forward(Lowering& low) {
  Reader read(low, low.input(1), low.input(0));
  const std::int64_t state = read.layer.state();
  read.input(kGatesOf, read.all(kGates), true);
  read.input(kWeights, kGates * read.layer.hidden * read.layer.hidden);
  read.input(kFirstH, state);
  read.input(kFirstC, state);
  read.output(kY, read.all(1));
  read.output(kKeptOf, read.all(kKept));
  read.output(kLastH, state, true);
  read.output(kLastC, state, true);
  read.finish<BoundForward>();
}

// Inputs: kept (T, N, 5 * H), weights (4 * H, H) and, where attributes has_y, has_h and has_c say so, the
// gradients of y (T, N, H) and of the last h and c (N, H). Outputs: gradients of the gates (T, N, 4 * H), of
// the first h and c (N, H) float32.
void lower_back(Lowering& low) {
  Reader read(low, low.input(1), low.input(0));
  const std::int64_t state = read.layer.state();
  read.input(kKeptOf, read.all(kKept));
  read.input(kWeights, kGates * read.layer.hidden * read.layer.hidden);
  read.optional_input(kY, "has_y", read.all(1));
  read.optional_input(kFirstH, "has_h", state);
  read.optional_input(kFirstC, "has_c", state);
  read.output(kGatesOf, read.all(kGates));
  read.output(kLastH, state, true);
  read.output(kLastC, state, true);
  read.finish<BoundBack>();
}

constexpr Implementation kForward[] = {{"steps", lower_forward}};
constexpr Implementation kBack[] = {{"steps", lower_back}};

}  // namespace

void lower_lstm_steps(Lowering& low) { lower_named(low, kForward); }

void lower_lstm_steps_grad(Lowering& low) { lower_named(low, kBack); }

}  // namespace npu
