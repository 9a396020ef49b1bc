// The parameters of our own kernels' loops besides instructions: cache sizes and the cost of a thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace npu {

// Of the target that a program was compiled for (tbe/processor.py). Kernels state the least work that
// justifies another thread, measured where waking one costs kReferenceWakeNs.
struct Loops {
  static constexpr double kReferenceWakeNs = 20'000;

  std::int64_t l1_bytes = 32 << 10, l2_bytes = 1 << 20, last_bytes = 32 << 20;
  double wake_ns = kReferenceWakeNs;
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

// The least work that justifies another thread, in a kernel's own unit.
inline double worth_a_thread(double measured) {
  return measured * (loops().wake_ns / Loops::kReferenceWakeNs);
}

// The same in pieces of `unit` each, at least one.
inline std::int64_t grain(double measured, std::int64_t unit = 1) {
  const double pieces = worth_a_thread(measured) / static_cast<double>(std::max<std::int64_t>(unit, 1));
  return std::max<std::int64_t>(static_cast<std::int64_t>(pieces), 1);
}

}  // namespace npu
