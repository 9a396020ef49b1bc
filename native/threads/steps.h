// Runs work in steps, each of which depends on the entire previous step: the layers of a recurrent network.
#pragma once

#include <cstdint>
#include <type_traits>

namespace npu {

struct StepBody {
  void (*function)(void* data, std::int64_t step, std::int64_t first, std::int64_t last);
  void* data;
};

void run_steps(std::int64_t steps, std::int64_t blocks, std::int64_t grain, StepBody body);

// Calls body(step, first, last) for ranges that cover [0, blocks) in each step; every range of a step ends
// before the next step begins. Each member of the team has its range, of at least `grain` blocks; a range
// that its member has not begun because it is descheduled is run by the thread that waits for it. `body` must
// not throw.
template <class Body>
void run_steps(std::int64_t steps, std::int64_t blocks, std::int64_t grain, Body&& body) {
  using Function = std::remove_reference_t<Body>;
  const auto call = [](void* data, std::int64_t step, std::int64_t first, std::int64_t last) {
    (*static_cast<Function*>(data))(step, first, last);
  };
  run_steps(steps, blocks, grain, StepBody{call, &body});
}

}  // namespace npu
