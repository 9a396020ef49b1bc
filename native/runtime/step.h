// Steps: the immutable parts of a built program, and their bound form in a context.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/view.h"
#include "runtime/library.h"

namespace npu {

// The location of some bytes: fixed, or relative to a base that is known only when a run begins.
struct Location {
  // Held: what a loop keeps between its steps, after the arena's scratch memory.
  enum class Space : std::uint8_t { Constant, Arena, Input, Output, Held };
  Space space = Space::Arena;
  int index = 0;  // of the constant slot, the input or the output
  std::size_t offset = 0;
};

struct BoundBlock;

// Shapes of dynamically shaped outputs: (output, shape); the last report of an output counts.
using ShapeReport = std::vector<std::pair<int, Dims>>;

// One task of a run: nanoseconds of the steady clock, and its share without nested tasks.
struct TaskSpan {
  int task = 0;
  std::int64_t start = 0, end = 0, self = 0;
};

inline std::int64_t steady_nanoseconds() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

// Time spent in each task, measured only by profile(), while runs are recorded, and while tasks are observed.
struct TaskClock {
  std::vector<double> seconds;  // for profile()
  bool record = false;
  std::vector<TaskSpan> spans;  // if they are recorded
  std::int64_t inside = 0;      // nanoseconds of the blocks that the current task has run
  std::function<void(int task, bool done)> observe;  // called before a task begins and after it ends

  void add(int task, std::int64_t start, std::int64_t end) {
    if (record) {
      spans.push_back({task, start, end, end - start - inside});
    } else {
      seconds[static_cast<std::size_t>(task)] += static_cast<double>(end - start) * 1e-9;
    }
  }
};

// The state that a running program passes to its steps.
struct RunState {
#if NPU_ONEDNN
  dnnl_stream_t stream = nullptr;
#endif
  TaskClock* clock = nullptr;
  ShapeReport shapes;
  bool suspect = false;  // a task of this run has read or produced NaN

  void run(const BoundBlock& block);
  void report(int output, Dims shape);
};

// A step bound to addresses; belongs to one context.
class BoundStep {
 public:
  virtual ~BoundStep() = default;
  virtual void run(RunState& state) = 0;
};

struct BoundBlock {
  std::vector<BoundStep*> steps;
  const std::vector<int>* tasks = nullptr;  // the task of each step
  bool prelude = false;                     // prepares for the tasks of a loop's body, and runs none

  bool begins(std::size_t step) const { return step == 0 || (*tasks)[step - 1] != (*tasks)[step]; }
  bool ends(std::size_t step) const { return step + 1 == steps.size() || begins(step + 1); }
};

inline void RunState::run(const BoundBlock& block) {
  if (!clock) {
    for (BoundStep* step : block.steps) step->run(*this);
    return;
  }
  const bool observed = clock->observe && !block.prelude;
  const std::int64_t first = steady_nanoseconds(), outside = clock->inside;
  std::int64_t begin = first;
  for (std::size_t i = 0; i < block.steps.size(); ++i) {
    const int task = (*block.tasks)[i];
    clock->inside = 0;
    if (observed && block.begins(i)) clock->observe(task, false);
    block.steps[i]->run(*this);
    if (observed && block.ends(i)) clock->observe(task, true);
    const std::int64_t end = steady_nanoseconds();
    clock->add(task, begin, end);
    begin = end;
  }
  clock->inside = outside + begin - first;
}

inline void RunState::report(int output, Dims shape) {
  for (auto& [known, dims] : shapes) {
    if (known != output) continue;
    dims = std::move(shape);
    return;
  }
  shapes.emplace_back(output, std::move(shape));
}

// Binds steps to addresses in one context; records which must be patched when an address changes.
class Binder {
 public:
  virtual ~Binder() = default;
  // Keeps *slot equal to the address of `where`. The slot must not move.
  virtual void address(void** slot, const Location& where) = 0;
#if NPU_ONEDNN
  // A oneDNN memory object of the context whose handle follows `where`.
  virtual dnnl_memory_t memory(const dnnl::memory::desc& desc, const Location& where) = 0;
#endif
  virtual const BoundBlock* block(int index) = 0;
  // The steps to run once before a loop whose body is this block.
  virtual const BoundBlock* prelude(int index) = 0;
};

// The immutable part of a step, shared by all contexts.
class Step {
 public:
  virtual ~Step() = default;
  virtual std::unique_ptr<BoundStep> bind(Binder& binder) const = 0;
};

}  // namespace npu
