// The state of plans: watched variables, random generators.
#include "tensorflow/plan.h"

#include <random>
#include <utility>

namespace npu::tf {
namespace {

std::uint64_t random_number() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

}  // namespace

FunctionPlan::FunctionPlan(FunctionPlan&& other) noexcept
    : name(std::move(other.name)),
      program(std::move(other.program)),
      gpu(std::move(other.gpu)),
      steps(std::move(other.steps)),
      step_results(std::move(other.step_results)),
      structure(std::move(other.structure)),
      host_function(std::move(other.host_function)),
      host_functions(std::move(other.host_functions)),
      host_operator(std::move(other.host_operator)),
      escapes(other.escapes),
      inputs(std::move(other.inputs)),
      outputs(std::move(other.outputs)),
      others(std::move(other.others)),
      bound(std::move(other.bound)),
      random(std::move(other.random)),
      moves_counters(other.moves_counters),
      specialised(std::move(other.specialised)),
      watched(std::move(other.watched)),
      patience(other.patience),
      layout(other.layout) {}

ShapeReport FunctionPlan::run(const std::vector<Place>& inputs, const std::vector<Place>& outputs,
                              npu::Device& device) const {
  if (!gpu) {
    std::vector<void*> in, out;
    for (const Place& place : inputs) in.push_back(place.data());
    for (const Place& place : outputs) out.push_back(place.data());
    ShapeReport report = program->run(in.data(), out.data(), &device);
    for (const Place& place : outputs) {
      if (place.storage) place.storage->written_by_host();
    }
    return report;
  }
  const int index = device.index();
  std::vector<std::uint64_t> in, out;
  std::vector<std::unique_ptr<GpuMemory>> copied;  // what comes after them on the stream may use it again
  for (const Place& place : inputs) {
    if (place.storage) {
      in.push_back(place.storage->on_gpu(index, name));
      continue;
    }
    copied.push_back(std::make_unique<GpuMemory>(index, place.bytes, name));
    copied.back()->upload(place.host, place.bytes);
    in.push_back(copied.back()->address());
  }
  for (const Place& place : outputs) out.push_back(place.storage->gpu_place(index, name));
  const auto mark = [&] {
    for (const Place& place : outputs) place.storage->written_on_gpu();
  };
  try {
    ShapeReport report = gpu->run(index, in, out);
    mark();
    return report;
  } catch (...) {
    mark();  // it may have written in place
    throw;
  }
}

bool FunctionPlan::settled(const std::vector<Variable*>& variables) {
  if (watched.empty()) return false;
  const std::lock_guard lock(mutex_);
  bool same = seen_.size() == watched.size();
  seen_.resize(watched.size());
  for (std::size_t i = 0; i < watched.size(); ++i) {
    const std::uint64_t version = variables[static_cast<std::size_t>(watched[i])]->version();
    same = same && seen_[i] == version;
    seen_[i] = version;
  }
  quiet_calls_ = same ? quiet_calls_ + 1 : 0;
  if (quiet_calls_ < patience) return false;
  quiet_calls_ = 0;
  return true;
}

void Generators::advance(Counter& counter, std::uint64_t step) {
  counter.low += step;
  if (counter.low < step) ++counter.high;
}

Generators::Drawn Generators::draw(const FunctionPlan& plan) {
  Drawn drawn;
  if (plan.random.empty()) return drawn;
  std::unique_lock lock(mutex_);
  drawn.counters.reserve(2 * plan.random.size());
  for (const RandomCounter& random : plan.random) {
    const auto [found, fresh] = counters_.try_emplace(random.name);
    Counter& counter = found->second;
    if (fresh) counter.high = random.high ? *random.high : random_number();
    drawn.counters.push_back(counter.low);
    drawn.counters.push_back(counter.high);
    advance(counter, random.step);
  }
  if (plan.moves_counters) drawn.lock = std::move(lock);
  return drawn;
}

void Generators::move(Drawn& drawn, const FunctionPlan& plan, int index, std::uint64_t low) {
  const auto at = static_cast<std::size_t>(index);
  advance(counters_[plan.random[at].name], low - drawn.counters[2 * at]);
}

void Generators::reset() {
  const std::lock_guard lock(mutex_);
  counters_.clear();
}

}  // namespace npu::tf
