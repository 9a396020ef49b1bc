// Counters of a process that `tf-adapter top` reads: a page of memory shared through a file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace npu {

// The layout of the file, read by src/npu_tools/counters.py. Numbers are little-endian and only grow, except
// `current` and `limit`.
struct ActivityPage {
  static constexpr std::uint64_t kMagic = 0x3150'4f54'5550'4eULL;  // "NPUTOP1"
  static constexpr std::size_t kDevices = 64, kPrograms = 1000, kName = 48;
  using Counter = std::atomic<std::uint64_t>;

  struct Memory {
    Counter current, peak, limit;
  };
  struct Program {  // its name is written before the first run is counted
    char name[kName];
    Counter runs, nanoseconds;
  };

  Counter magic, compiles, compile_nanoseconds, host_calls, programs;
  char last_compile[kName];
  Memory memory[kDevices];
  Program program[kPrograms];  // the last one collects all programs without their own slot
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

class Activity {
 public:
  // The counters of this process; nullptr if there is no reader.
  static ActivityPage* page() { return page_.load(std::memory_order_acquire); }
  // Creates the file and counts there from now on, once per process; raises InvalidArgument. A forked child
  // does not count.
  static void publish(const std::string& path);

  static void count_host_call() {
    if (ActivityPage* to = page()) to->host_calls.fetch_add(1, std::memory_order_relaxed);
  }
  static void count_compile(std::string_view name, std::uint64_t nanoseconds);
  static void set_memory(int device, std::size_t current, std::size_t peak, std::size_t limit);
  // The slot of a program in the page; -1 if there is no page.
  static int add_program(std::string_view name);
  static void count_run(int place, std::uint64_t nanoseconds) {
    ActivityPage* to = page();
    if (!to || place < 0) return;
    ActivityPage::Program& program = to->program[place];
    program.runs.fetch_add(1, std::memory_order_relaxed);
    program.nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
  }

 private:
  static std::atomic<ActivityPage*> page_;
};

}  // namespace npu
