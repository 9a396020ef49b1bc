// Records profiles: when the tasks of every run began and ended, and the total time of each task.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/step.h"

namespace npu {

// One task of a run, or with task -1 the run itself; nanoseconds of the steady clock.
struct RecordedSpan {
  std::int64_t program, task, thread, start, end;
};

class Sampling;

struct RecordedProgram {
  std::string name;
  std::int64_t runs = 0;
  std::int64_t nanoseconds = 0;
  std::vector<std::int64_t> calls;  // of each task
  std::vector<std::int64_t> self;   // nanoseconds of each task, excluding nested tasks
  std::shared_ptr<Sampling> sampling;
};

// The runs of a program that are timed task by task: the first ones, then as many as cost at most
// kMostOverhead of its time. Skipped runs are counted, and the measurements are scaled to all runs.
class Sampling {
 public:
  // True if the next run is to be timed.
  bool due() {
    if (left_.load(std::memory_order_relaxed) <= 0) return true;
    left_.fetch_sub(1, std::memory_order_relaxed);
    skipped_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  // Decides how many runs to skip after `runs` timed ones of `spans` tasks each.
  void timed(std::int64_t runs, std::int64_t nanoseconds, std::size_t spans);
  // The runs skipped since the last call.
  std::int64_t take_skipped() { return skipped_.exchange(0); }

 private:
  static constexpr std::int64_t kFirst = 64;
  static constexpr double kSpanNanoseconds = 150, kMostOverhead = 0.01;
  std::atomic<std::int64_t> left_{0}, skipped_{0};
};

class Recording {
 public:
  struct Taken {
    std::map<std::int64_t, RecordedProgram> programs;
    std::vector<RecordedSpan> spans;
    std::int64_t dropped = 0;  // spans beyond the first million, and those of skipped runs
  };

  static bool on() { return on_.load(std::memory_order_relaxed); }
  static void turn(bool on) { on_.store(on, std::memory_order_relaxed); }
  static std::int64_t next_program();  // a number for a program
  // Adds a timed run.
  static void add(std::int64_t program, const std::string& name, const std::shared_ptr<Sampling>& sampling,
                  const TaskClock& clock, std::int64_t start, std::int64_t end);
  // What has been recorded since the last call.
  static Taken take();

 private:
  static std::atomic<bool> on_;
};

}  // namespace npu
