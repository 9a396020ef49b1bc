// The timeline of a profile: when functions and operators ran, and where.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace npu::tf {

// One call: nanoseconds of the steady clock, and a small number for the thread.
struct Span {
  std::string name;
  bool on_npu = false;
  int thread = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
};

class Timeline {
 public:
  static Timeline& get();

  bool on() const { return on_.load(std::memory_order_relaxed); }
  void turn(bool on) { on_.store(on, std::memory_order_relaxed); }
  void add(const std::string& name, bool on_npu, std::int64_t start, std::int64_t end);
  // The calls since the last time this was asked: the first million of them.
  std::vector<Span> take();

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::vector<Span> spans_;
};

// Measures the scope it lives in where the timeline is on.
class Timed {
 public:
  Timed(const std::string& name, bool on_npu);
  ~Timed();
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  const std::string& name_;
  bool on_npu_;
  std::int64_t start_ = 0;  // 0: the timeline is off
};

}  // namespace npu::tf
