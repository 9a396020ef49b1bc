// Runs programs; the parts of building that need no lowering.
#include "runtime/program.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/activity.h"
#include "core/errors.h"
#include "core/parallel.h"
#include "runtime/context.h"
#include "runtime/lowering.h"
#include "runtime/observer.h"
#include "runtime/recording.h"
#include "threads/team.h"

namespace npu {

Program::Program(std::string name, int device)
    : name_(std::move(name)),
      number_(Recording::next_program()),
      sampling_(std::make_shared<Sampling>()),
      activity_(Activity::add_program(name_)),
      device_(Device::get(device)),
      blocks_(1) {}

Program::~Program() {
  if (finalized_) device_.arenas().remove_user(arena_bytes_ + scratch_bytes_);
  for (Device* device : elsewhere_) device->arenas().remove_user(memory_bytes());
}

void Program::check_building() const {
  if (finalized_) throw InvalidArgument("program '" + name_ + "' is finalized and cannot be changed");
}

int Program::add_io(std::vector<std::size_t>& sizes, Buffer::Kind kind, int index, std::size_t nbytes) {
  check_building();
  if (index < 0 || index > (1 << 20)) throw InvalidArgument("index out of range: " + std::to_string(index));
  const auto at = static_cast<std::size_t>(index);
  if (at >= sizes.size()) sizes.resize(at + 1, 0);
  sizes[at] = std::max(sizes[at], nbytes);
  buffers_.push_back({kind, index, 0, nbytes});
  return static_cast<int>(buffers_.size()) - 1;
}

int Program::input(int index, std::size_t nbytes) {
  return add_io(input_bytes_, Buffer::Kind::Input, index, nbytes);
}

int Program::output(int index, std::size_t nbytes, int over) {
  if (over < Buffer::kAnyInput) throw InvalidArgument("index out of range: " + std::to_string(over));
  const int buffer = add_io(output_bytes_, Buffer::Kind::Output, index, nbytes);
  buffers_.back().over = over;
  return buffer;
}

int Program::arena(std::size_t offset, std::size_t nbytes) {
  check_building();
  buffers_.push_back({Buffer::Kind::Arena, 0, offset, nbytes});
  return static_cast<int>(buffers_.size()) - 1;
}

int Program::constant(ConstantSource source, std::size_t nbytes) {
  check_building();
  sources_.push_back(std::move(source));
  buffers_.push_back({Buffer::Kind::Constant, static_cast<int>(sources_.size()) - 1, 0, nbytes});
  return static_cast<int>(buffers_.size()) - 1;
}

int Program::block() {
  check_building();
  blocks_.emplace_back();
  return static_cast<int>(blocks_.size()) - 1;
}

void Program::task(TaskDef task) {
  check_building();
  const std::string who = "task '" + task.name + "' (" + task.kind + ")";
  if (!is_task_kind(task.kind)) throw InvalidArgument(who + ": unknown task kind");
  if (task.block < 0 || task.block >= static_cast<int>(blocks_.size())) {
    throw InvalidArgument(who + ": block " + std::to_string(task.block) + " does not exist");
  }
  const bool dense = task.kind == "kernel";
  const auto check = [&](const View& view, const std::string& what, bool written) {
    if (view.buffer < 0 || view.buffer >= static_cast<int>(buffers_.size())) {
      throw InvalidArgument(what + ": buffer " + std::to_string(view.buffer) + " does not exist");
    }
    const Buffer& buffer = buffers_[static_cast<std::size_t>(view.buffer)];
    if (written && buffer.kind == Buffer::Kind::Constant)
      throw InvalidArgument(what + ": writes to a constant");
    if (written && buffer.kind == Buffer::Kind::Input) throw InvalidArgument(what + ": writes to an input");
    (dense ? check_dense : check_view)(view, buffer.nbytes, what);
  };
  for (std::size_t i = 0; i < task.inputs.size(); ++i) {
    check(task.inputs[i], who + " input " + std::to_string(i), false);
  }
  for (std::size_t i = 0; i < task.outputs.size(); ++i) {
    check(task.outputs[i], who + " output " + std::to_string(i), true);
  }
  tasks_.push_back(std::move(task));
}

void Program::set_loops(const Loops& loops) {
  check_building();
  if (loops.l1_bytes <= 0 || loops.l2_bytes <= 0 || loops.last_bytes <= 0 || !(loops.wake_ns > 0)) {
    throw InvalidArgument("program '" + name_ + "': sizes of caches and the price of a thread are positive");
  }
  loops_ = loops;
}

void Program::repeat(int times, std::vector<std::size_t> input_steps, std::vector<std::size_t> output_steps) {
  check_building();
  if (times < 1 || input_steps.size() != input_bytes_.size() || output_steps.size() != output_bytes_.size()) {
    throw InvalidArgument("program '" + name_ + "': a repetition needs a step for each input and output");
  }
  times_ = times;
  input_steps_ = std::move(input_steps);
  output_steps_ = std::move(output_steps);
}

std::unique_ptr<Context> Program::take_context() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto context = std::move(free_.back());
      free_.pop_back();
      return context;
    }
  }
  return std::make_unique<Context>(*this);
}

void Program::give_context(std::unique_ptr<Context> context) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(context));
}

class Program::ContextLease {
 public:
  explicit ContextLease(Program& program) : program_(program), context_(program.take_context()) {}
  ~ContextLease() { program_.give_context(std::move(context_)); }
  ContextLease(const ContextLease&) = delete;
  ContextLease& operator=(const ContextLease&) = delete;
  Context* operator->() const { return context_.get(); }
  Context& operator*() const { return *context_; }

 private:
  Program& program_;
  std::unique_ptr<Context> context_;
};

void Program::announce(Device& device) {
  const std::lock_guard lock(mutex_);
  if (std::find(elsewhere_.begin(), elsewhere_.end(), &device) != elsewhere_.end()) return;
  device.arenas().add_user(memory_bytes());
  elsewhere_.push_back(&device);
}

ShapeReport Program::execute(void* const* inputs, void* const* outputs, TaskClock* clock, char* memory,
                             Device* where) {
  if (!finalized_) throw InvalidArgument("program '" + name_ + "' is not finalized");
  Device& device = where ? *where : device_;
  if (&device != &device_) announce(device);
  const PoolScope pool(device.index());
  const TeamScope team(threads_);  // primitives hold per-thread memory for exactly this team
  const LoopsScope loops(loops_);
  const ContextLease context(*this);
  const ArenaPool::Lease arena =
      device.arenas().borrow(memory ? 0 : memory_bytes(), context->arena(), arena_requester_);
  context->rebase(memory ? memory : arena.data(), inputs, outputs);
  if (clock) return run_times(*context, clock);
  if (Observer::on()) return run_observed(*context, device.index());
  if (Recording::on() && sampling_->due()) return run_recorded(*context);
  if (activity_ < 0) return run_times(*context, nullptr);
  const std::int64_t start = steady_nanoseconds();
  ShapeReport report = run_times(*context, nullptr);
  Activity::count_run(activity_, static_cast<std::uint64_t>(steady_nanoseconds() - start));
  return report;
}

ShapeReport Program::run_times(Context& context, TaskClock* clock) {
  ShapeReport report = context.run(clock);
  for (int i = 1; i < times_; ++i) {
    context.advance(input_steps_, output_steps_);
    context.run(clock);
  }
  return report;
}

ShapeReport Program::run_observed(Context& context, int device) {
  const std::shared_ptr<const Observer::Function> observer = Observer::get();
  Observation at;
  at.program = number_;
  at.device = device;
  at.run = observed_.fetch_add(1, std::memory_order_relaxed);
  TaskClock clock;
  clock.seconds.resize(tasks_.size());
  clock.observe = [&](int task, bool done) {
    at.task = task;
    at.done = done;
    context.addresses(at);
    if (observer) (*observer)(at);
  };
  const std::int64_t start = steady_nanoseconds();
  ShapeReport report = run_times(context, &clock);
  Activity::count_run(activity_, static_cast<std::uint64_t>(steady_nanoseconds() - start));
  return report;
}

ShapeReport Program::run_recorded(Context& context) {
  TaskClock clock;
  clock.seconds.resize(tasks_.size());
  clock.record = true;
  clock.spans.reserve(tasks_.size() * static_cast<std::size_t>(times_));
  const std::int64_t start = steady_nanoseconds();
  ShapeReport report = run_times(context, &clock);
  const std::int64_t end = steady_nanoseconds();
  Activity::count_run(activity_, static_cast<std::uint64_t>(end - start));
  Recording::add(number_, name_, sampling_, clock, start, end);
  return report;
}

ShapeReport Program::run(void* const* inputs, void* const* outputs, Device* where) {
  return execute(inputs, outputs, nullptr, nullptr, where);
}

ShapeReport Program::run_in(char* memory, void* const* inputs, void* const* outputs) {
  return execute(inputs, outputs, nullptr, memory);
}

std::vector<double> Program::profile(void* const* inputs, void* const* outputs, int repeats) {
  std::vector<double> best(tasks_.size(), 0.0);
  for (int i = 0; i < repeats; ++i) {
    TaskClock clock;
    clock.seconds.resize(tasks_.size());
    execute(inputs, outputs, &clock);
    for (std::size_t t = 0; t < best.size(); ++t) {
      best[t] = i == 0 ? clock.seconds[t] : std::min(best[t], clock.seconds[t]);
    }
  }
  return best;
}

}  // namespace npu
