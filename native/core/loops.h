// The parameters of our own kernels' loops besides instructions: cache sizes and the cost of a thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace npu {

// Of the target that a program was compiled for (tbe/processor.py).
struct Loops {
  static constexpr double kCyclesPerNs = 3;  // nominal, as in ge/target/target.py

  std::int64_t l1_bytes = 32 << 10, l2_bytes = 1 << 20, last_bytes = 32 << 20;
  double wake_ns = 20'000;
};

// The caches of this processor as reported by the system, else the defaults.
const Loops& host_loops();

// Those of the program that the calling thread builds or runs, else of this processor. Not for use inside
// parallel regions, whose other threads run no program.
const Loops& loops();

class LoopsScope {
 public:
  explicit LoopsScope(const Loops& loops);
  ~LoopsScope();
  LoopsScope(const LoopsScope&) = delete;
  LoopsScope& operator=(const LoopsScope&) = delete;

 private:
  const Loops* before_;
};

// Cycles of work that justify another thread. Kernels estimate their own cycles from their instructions.
inline double wake_cycles() { return loops().wake_ns * Loops::kCyclesPerNs; }

// The least number of pieces that justify another thread: `cycles` for each unit, this many units in a piece.
inline std::int64_t grain(double cycles, std::int64_t units = 1) {
  const double piece = cycles * static_cast<double>(std::max<std::int64_t>(units, 1));
  return std::max<std::int64_t>(static_cast<std::int64_t>(wake_cycles() / piece), 1);
}

}  // namespace npu
