// The state of plans: variables that are watched, generators that move on.
#include "tensorflow/plan.h"

#include <utility>

namespace npu::tf {

Plan::Plan(Plan&& other) noexcept
    : name(std::move(other.name)),
      program(std::move(other.program)),
      steps(std::move(other.steps)),
      step_results(std::move(other.step_results)),
      structure(std::move(other.structure)),
      host_function(std::move(other.host_function)),
      host_operator(std::move(other.host_operator)),
      escapes(other.escapes),
      inputs(std::move(other.inputs)),
      outputs(std::move(other.outputs)),
      others(std::move(other.others)),
      bound(std::move(other.bound)),
      random(std::move(other.random)),
      specialised(std::move(other.specialised)),
      watched(std::move(other.watched)),
      patience(other.patience),
      layout(other.layout) {}

bool Plan::settled(const std::vector<Variable*>& variables) {
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

std::vector<std::uint64_t> Generators::draw(const std::vector<RandomCounter>& random) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = counters_.size() / 2; i < random.size(); ++i) {
    counters_.push_back(random[i].low);
    counters_.push_back(random[i].high);
  }
  std::vector<std::uint64_t> drawn(counters_.begin(),
                                   counters_.begin() + static_cast<std::ptrdiff_t>(2 * random.size()));
  for (std::size_t i = 0; i < random.size(); ++i) {
    std::uint64_t& low = counters_[2 * i];
    low += random[i].step;
    if (low < random[i].step) ++counters_[2 * i + 1];
  }
  return drawn;
}

void Generators::reset() {
  const std::lock_guard lock(mutex_);
  counters_.clear();
}

}  // namespace npu::tf
