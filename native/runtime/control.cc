// Task kinds "if", "while", "scan_load" and "scan_store": nested task lists.
#include <cstring>

#include "core/errors.h"
#include "runtime/lowering.h"

namespace npu {
namespace {

template <class T>
T load(const void* place) {
  T value;
  std::memcpy(&value, place, sizeof(T));
  return value;
}

void check_scalar(const Lowering& low, const View& view, DType type, const char* what) {
  if (view.dtype == type && view.elements() == 1) return;
  low.reject(std::string(what) + " must be one " + std::string(dtype_name(type)));
}

class BoundIf : public BoundStep {
 public:
  BoundIf(const BoundBlock* then_block, const BoundBlock* else_block)
      : then_(then_block), else_(else_block) {}
  void run(RunState& state) override {
    const BoundBlock* chosen = load<std::uint8_t>(condition) ? then_ : else_;
    if (chosen) state.run(*chosen);
  }
  void* condition = nullptr;

 private:
  const BoundBlock* then_;
  const BoundBlock* else_;
};

class IfStep : public Step {
 public:
  IfStep(Location condition, int then_block, int else_block)
      : condition_(condition), then_(then_block), else_(else_block) {}
  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundIf>(then_ > 0 ? binder.block(then_) : nullptr,
                                           else_ > 0 ? binder.block(else_) : nullptr);
    binder.address(&bound->condition, condition_);
    return bound;
  }

 private:
  Location condition_;
  int then_, else_;
};

using StoredOutputs = std::vector<std::pair<int, Dims>>;

class BoundWhile : public BoundStep {
 public:
  BoundWhile(const BoundBlock* prelude, const BoundBlock* body, const StoredOutputs& stored)
      : prelude_(prelude), body_(body), stored_(stored) {}

  void run(RunState& state) override {
    for (const auto& [output, dims] : stored_) {
      Dims none = dims;
      none[0] = 0;
      state.report(output, std::move(none));
    }
    state.run(*prelude_);
    const std::int64_t limit = trip ? load<std::int64_t>(trip) : 0;
    for (std::int64_t i = 0;; ++i) {
      std::memcpy(counter, &i, sizeof(i));
      if (trip && i >= limit) return;
      if (condition && !load<std::uint8_t>(condition)) return;
      state.run(*body_);
    }
  }

  void* trip = nullptr;
  void* condition = nullptr;
  void* counter = nullptr;

 private:
  const BoundBlock* prelude_;
  const BoundBlock* body_;
  const StoredOutputs& stored_;
};

class WhileStep : public Step {
 public:
  WhileStep(int body, StoredOutputs stored) : body_(body), stored_(std::move(stored)) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundWhile>(binder.prelude(body_), binder.block(body_), stored_);
    if (has_trip) binder.address(&bound->trip, trip);
    if (has_condition) binder.address(&bound->condition, condition);
    binder.address(&bound->counter, counter);
    return bound;
  }

  bool has_trip = false, has_condition = false;
  Location trip, condition, counter;

 private:
  int body_;
  StoredOutputs stored_;
};

// One step's slice of a tensor whose first axis runs over steps.
struct Slice {
  std::int64_t steps;
  std::size_t bytes;

  Slice(const Lowering& low, const View& whole, const View& part) {
    if (whole.dims.empty()) low.reject("the stepped tensor needs a leading axis");
    steps = whole.dims[0];
    bytes = part.bytes();
    if (!whole.contiguous() || !part.contiguous()) low.reject("views must be contiguous");
    if (whole.dtype != part.dtype || bytes * static_cast<std::size_t>(steps) != whole.bytes()) {
      low.reject("a step's value does not match the stepped tensor");
    }
  }
};

[[noreturn]] void out_of_steps(const std::string& task, std::int64_t step, std::int64_t steps) {
  throw TaskError(task, "step " + std::to_string(step) + " of " + std::to_string(steps));
}

class BoundScanLoad : public BoundStep {
 public:
  BoundScanLoad(Slice slice, bool reverse, const std::string& task)
      : slice_(slice), reverse_(reverse), task_(task) {}
  void run(RunState&) override {
    const auto step = load<std::int64_t>(counter);
    if (step < 0 || step >= slice_.steps) out_of_steps(task_, step, slice_.steps);
    const auto index = static_cast<std::size_t>(reverse_ ? slice_.steps - 1 - step : step);
    std::memcpy(target, static_cast<const char*>(source) + index * slice_.bytes, slice_.bytes);
  }
  void* source = nullptr;
  void* counter = nullptr;
  void* target = nullptr;

 private:
  Slice slice_;
  bool reverse_;
  const std::string& task_;
};

class BoundScanStore : public BoundStep {
 public:
  BoundScanStore(Slice slice, bool reverse, int output, const Dims& dims, const std::string& task)
      : slice_(slice), reverse_(reverse), output_(output), dims_(dims), task_(task) {}
  void run(RunState& state) override {
    const auto step = load<std::int64_t>(counter);
    if (step < 0 || step >= slice_.steps) out_of_steps(task_, step, slice_.steps);
    const auto index = static_cast<std::size_t>(reverse_ ? slice_.steps - 1 - step : step);
    std::memcpy(static_cast<char*>(target) + index * slice_.bytes, source, slice_.bytes);
    if (output_ < 0) return;
    Dims actual = dims_;
    actual[0] = step + 1;
    state.report(output_, std::move(actual));
  }
  void* source = nullptr;
  void* counter = nullptr;
  void* target = nullptr;

 private:
  Slice slice_;
  bool reverse_;
  int output_;
  const Dims& dims_;
  const std::string& task_;
};

class ScanStep : public Step {
 public:
  ScanStep(Lowering& low, Slice slice, int output)
      : slice_(slice),
        reverse_(low.attrs().flag("reverse")),
        store_(low.task().kind == "scan_store"),
        output_(output),
        dims_(low.output(0).dims),
        task_(low.task().name),
        source_(low.at(low.input(0))),
        counter_(low.at(low.input(1))),
        target_(low.at(low.output(0))) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    if (store_)
      return bind_as(binder, std::make_unique<BoundScanStore>(slice_, reverse_, output_, dims_, task_));
    return bind_as(binder, std::make_unique<BoundScanLoad>(slice_, reverse_, task_));
  }

 private:
  template <class Bound>
  std::unique_ptr<BoundStep> bind_as(Binder& binder, std::unique_ptr<Bound> bound) const {
    binder.address(&bound->source, source_);
    binder.address(&bound->counter, counter_);
    binder.address(&bound->target, target_);
    return bound;
  }

  Slice slice_;
  bool reverse_, store_;
  int output_;
  Dims dims_;
  std::string task_;
  Location source_, counter_, target_;
};

}  // namespace

void lower_if(Lowering& low) {
  check_scalar(low, low.input(0), DType::Bool, "the condition");
  const int then_block = low.attrs().has("then_block") ? low.block_attr("then_block") : 0;
  const int else_block = low.attrs().has("else_block") ? low.block_attr("else_block") : 0;
  low.describe("if", "", 0);
  low.emit(std::make_unique<IfStep>(low.at(low.input(0)), then_block, else_block));
}

void lower_while(Lowering& low) {
  const int body = low.block_attr("body_block");
  auto step = std::make_unique<WhileStep>(body, low.stored_outputs(body));
  for (const View& view : low.task().inputs) {
    const bool is_trip = view.dtype == DType::Int64;
    check_scalar(low, view, is_trip ? DType::Int64 : DType::Bool,
                 is_trip ? "the trip count" : "the condition");
    (is_trip ? step->has_trip : step->has_condition) = true;
    (is_trip ? step->trip : step->condition) = low.at(view);
  }
  if (!step->has_trip && !step->has_condition) low.reject("neither a trip count nor a condition is given");
  check_scalar(low, low.output(0), DType::Int64, "the counter");
  step->counter = low.at(low.output(0));
  low.describe("while", "", 0);
  low.emit(std::move(step));
}

void lower_scan_load(Lowering& low) {
  check_scalar(low, low.input(1), DType::Int64, "the counter");
  const Slice slice(low, low.input(0), low.output(0));
  low.describe("memcpy", "", 0);
  low.emit(std::make_unique<ScanStep>(low, slice, -1));
}

void lower_scan_store(Lowering& low) {
  check_scalar(low, low.input(1), DType::Int64, "the counter");
  const Slice slice(low, low.output(0), low.input(0));
  low.describe("memcpy", "", 0);
  const int output = low.attrs().flag("counted") ? low.output_of(low.output(0)) : -1;
  low.emit(std::make_unique<ScanStep>(low, slice, output));
}

}  // namespace npu
