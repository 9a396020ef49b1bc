#include "runtime/recording.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace npu {
namespace {

constexpr std::size_t kMostSpans = 1 << 20;

struct Store {
  std::mutex mutex;
  Recording::Taken taken;
};

Store& store() {
  static auto* made = new Store;  // threads of frameworks may outlive static objects
  return *made;
}

std::int64_t thread_number() {
  static std::atomic<std::int64_t> next{1};
  static thread_local const std::int64_t number = next.fetch_add(1);
  return number;
}

// Takes runs that were left out into account; returns how many calls of tasks they are estimated to have
// made.
std::int64_t scale(RecordedProgram& record, std::int64_t skipped) {
  const double factor = 1.0 + static_cast<double>(skipped) / static_cast<double>(record.runs);
  const auto scaled = [factor](std::int64_t value) {
    return static_cast<std::int64_t>(std::llround(factor * static_cast<double>(value)));
  };
  std::int64_t added = 0;
  for (std::size_t task = 0; task < record.calls.size(); ++task) {
    const std::int64_t calls = scaled(record.calls[task]);
    added += calls - record.calls[task];
    record.calls[task] = calls;
    record.self[task] = scaled(record.self[task]);
  }
  record.nanoseconds = scaled(record.nanoseconds);
  record.runs += skipped;
  return added;
}

}  // namespace

std::atomic<bool> Recording::on_{false};

std::int64_t Recording::next_program() {
  static std::atomic<std::int64_t> next{1};
  return next.fetch_add(1);
}

void Sampling::timed(std::int64_t runs, std::int64_t nanoseconds, std::size_t spans) {
  if (runs < kFirst) return;
  const double cost = kSpanNanoseconds * static_cast<double>(spans + 1);
  const double mean = std::max(1.0, static_cast<double>(nanoseconds) / static_cast<double>(runs));
  left_.store(static_cast<std::int64_t>(cost / (kMostOverhead * mean)), std::memory_order_relaxed);
}

void Recording::add(std::int64_t program, const std::string& name, const std::shared_ptr<Sampling>& sampling,
                    const TaskClock& clock, std::int64_t start, std::int64_t end) {
  const std::int64_t thread = thread_number();
  const std::lock_guard lock(store().mutex);
  Taken& taken = store().taken;
  RecordedProgram& record = taken.programs[program];
  if (record.runs == 0) {
    record.name = name;
    record.sampling = sampling;
    record.calls.resize(clock.seconds.size());
    record.self.resize(clock.seconds.size());
  }
  ++record.runs;
  record.nanoseconds += end - start;
  sampling->timed(record.runs, record.nanoseconds, clock.spans.size());
  for (const TaskSpan& span : clock.spans) {
    const auto task = static_cast<std::size_t>(span.task);
    ++record.calls[task];
    record.self[task] += span.self;
  }
  if (taken.spans.size() + clock.spans.size() + 1 > kMostSpans) {
    taken.dropped += static_cast<std::int64_t>(clock.spans.size()) + 1;
    return;
  }
  taken.spans.push_back({program, -1, thread, start, end});
  for (const TaskSpan& span : clock.spans) {
    taken.spans.push_back({program, span.task, thread, span.start, span.end});
  }
}

Recording::Taken Recording::take() {
  const std::lock_guard lock(store().mutex);
  Taken taken = std::exchange(store().taken, {});
  for (auto& [number, record] : taken.programs) {
    const std::int64_t skipped = record.sampling->take_skipped();
    if (skipped == 0) continue;
    taken.dropped += skipped + scale(record, skipped);
  }
  return taken;
}

}  // namespace npu
