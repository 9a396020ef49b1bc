// An observer of the tasks of all runs: called before and after each one, for tensor dumps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace npu {

// A task that is about to run, or has run, and the base addresses of its program's buffers.
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
  // The current function, which may be removed concurrently.
  static std::shared_ptr<const Function> get();

 private:
  static std::atomic<bool> on_;
};

}  // namespace npu
