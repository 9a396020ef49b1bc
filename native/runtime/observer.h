// An observer of the tasks of all runs: is told before and after each one, for dumps of tensors.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace npu {

// A task that is about to run, or has run, and the addresses that the buffers of its program are relative to.
struct Observation {
  std::int64_t program = 0;
  std::int64_t run = 0;  // of that program, from 0
  int device = 0;
  int task = 0;
  bool done = false;
  std::uintptr_t arena = 0;
  std::vector<std::uintptr_t> inputs, outputs;
};

class Observer {
 public:
  using Function = std::function<void(const Observation&)>;

  static bool on() { return on_.load(std::memory_order_relaxed); }
  // Empty: the observer has been removed.
  static void set(Function function);
  // The function in force, which may be gone by now.
  static std::shared_ptr<const Function> get();

 private:
  static std::atomic<bool> on_;
};

}  // namespace npu
