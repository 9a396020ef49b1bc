// Streams and events: ordered queues with a thread each, and marks in them.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "c/status.h"
#include "core/condition.h"

namespace npu {

class Stream {
 public:
  using Work = std::function<void()>;

  Stream();
  // Waits for what is in it.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void submit(Work work);
  // Waits until all work submitted so far is done; the first failure since the last call, if any. An empty
  // optional: the time is over.
  std::optional<Failure> synchronize(std::optional<std::chrono::milliseconds> limit = {});
  bool idle();

 private:
  void serve();

  std::mutex mutex_;
  Condition changed_;
  std::deque<Work> work_;
  std::uint64_t submitted_ = 0, done_ = 0;
  bool closing_ = false;
  Failure first_;
  std::thread thread_;
};

// A mark in a stream. Recording it again moves it.
class Event {
 public:
  using Clock = std::chrono::steady_clock;

  void record(Stream& stream);
  void wait_in(Stream& stream);
  void synchronize();
  bool reached();
  // When the mark was reached; none before.
  std::optional<Clock::time_point> time();
  void reset();

 private:
  struct Mark {
    std::mutex mutex;
    Condition changed;
    std::optional<Clock::time_point> time;
  };
  std::shared_ptr<Mark> mark();

  std::mutex mutex_;
  std::shared_ptr<Mark> mark_;  // none: never recorded, which counts as reached
};

}  // namespace npu
