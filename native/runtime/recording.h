// The recording of a profile: when the tasks of every run began and ended, and what each task took in all.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/step.h"

namespace npu {

// One task of a run, or with task -1 the run itself; nanoseconds of the steady clock.
struct RecordedSpan {
  std::int64_t program, task, thread, start, end;
};

struct RecordedProgram {
  std::string name;
  std::int64_t runs = 0;
  std::int64_t nanoseconds = 0;
  std::vector<std::int64_t> calls;  // of each task
  std::vector<std::int64_t> self;   // nanoseconds of each task, without the tasks inside of it
};

class Recording {
 public:
  struct Taken {
    std::map<std::int64_t, RecordedProgram> programs;
    std::vector<RecordedSpan> spans;
    std::int64_t dropped = 0;  // spans of runs after the first million
  };

  static bool on() { return on_.load(std::memory_order_relaxed); }
  static void turn(bool on) { on_.store(on, std::memory_order_relaxed); }
  static std::int64_t next_program();  // a number for a program
  // Adds a run that the clock has timed.
  static void add(std::int64_t program, const std::string& name, const TaskClock& clock, std::int64_t start,
                  std::int64_t end);
  // What has been recorded since the last time this was asked.
  static Taken take();

 private:
  static std::atomic<bool> on_;
};

}  // namespace npu
