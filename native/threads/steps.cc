// A step's ranges are claimed one by one; a count of those that have ended tells which step it is.
#include "threads/steps.h"

#include <algorithm>
#include <array>
#include <climits>

#include "threads/team.h"
#include "threads/wait.h"

namespace npu {
namespace {

constexpr int kMostParts = 64;
constexpr int kGrace = 64;  // spins to wait for a member to begin its part

class Steps {
 public:
  Steps(std::int64_t steps, std::int64_t blocks, int parts, StepBody body)
      : steps_(steps), blocks_(blocks), parts_(static_cast<std::uint32_t>(parts)), body_(body) {}

  void take_part(std::uint32_t self) {
    for (;;) {
      const std::uint32_t ended = ended_.load(std::memory_order_acquire);
      const std::uint32_t step = ended / parts_;
      if (step >= steps_) return;
      if (claim(self, step)) {
        state_[self].away.store(false, std::memory_order_relaxed);
        work(self, step);
      } else if (!help(step, ended)) {
        wait(ended);
      }
    }
  }

 private:
  struct alignas(64) Part {
    Word claimed = 0;  // steps whose part has begun
    std::atomic<bool> away = false;
  };

  bool is_free(std::uint32_t part, std::uint32_t step) const {
    return state_[part].claimed.load(std::memory_order_relaxed) == step;
  }

  bool claim(std::uint32_t part, std::uint32_t step) {
    return is_free(part, step) &&
           state_[part].claimed.compare_exchange_strong(step, step + 1, std::memory_order_acq_rel);
  }

  void work(std::uint32_t part, std::uint32_t step) {
    body_.function(body_.data, step, blocks_ * part / parts_, blocks_ * (part + 1) / parts_);
    ended_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) futex_wake(&ended_, INT_MAX);
  }

  // Does a part that nobody has begun: at once if its member was away before, else after a moment in which it
  // may come.
  bool help(std::uint32_t step, std::uint32_t ended) {
    for (std::uint32_t part = 0; part < parts_; ++part) {
      if (!is_free(part, step)) continue;
      for (int i = 0; i < kGrace && !state_[part].away.load(std::memory_order_relaxed); ++i) {
        relax();
        if (!is_free(part, step) || ended_.load(std::memory_order_acquire) != ended) return true;
      }
      if (!claim(part, step)) return true;
      state_[part].away.store(true, std::memory_order_relaxed);
      work(part, step);
      return true;
    }
    return false;
  }

  // Waits for parts in progress.
  void wait(std::uint32_t ended) {
    const auto over = [&] { return ended_.load(std::memory_order_acquire) != ended; };
    if (spin_until(over)) return;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    futex_wait(ended_, ended);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

  const std::int64_t steps_, blocks_;
  const std::uint32_t parts_;
  const StepBody body_;
  Word ended_ = 0;  // parts, of all steps
  Word sleepers_ = 0;
  std::array<Part, kMostParts> state_;
};

}  // namespace

void run_steps(std::int64_t steps, std::int64_t blocks, std::int64_t grain, StepBody body) {
  const std::int64_t most = member_count() > 1 ? 1 : std::min(team_size(), kMostParts);
  const auto parts = static_cast<int>(std::min(most, blocks / std::max<std::int64_t>(grain, 1)));
  if (parts <= 1 || steps > UINT_MAX / kMostParts) {
    for (std::int64_t step = 0; step < steps; ++step) body.function(body.data, step, 0, blocks);
    return;
  }
  Steps shared(steps, blocks, parts, body);
  run_region(
      [](void* data) { static_cast<Steps*>(data)->take_part(static_cast<std::uint32_t>(member_index())); },
      &shared, parts);
}

}  // namespace npu
