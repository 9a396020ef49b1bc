#include "runtime/recording.h"

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

}  // namespace

std::atomic<bool> Recording::on_{false};

std::int64_t Recording::next_program() {
  static std::atomic<std::int64_t> next{1};
  return next.fetch_add(1);
}

void Recording::add(std::int64_t program, const std::string& name, const TaskClock& clock, std::int64_t start,
                    std::int64_t end) {
  const std::int64_t thread = thread_number();
  const std::lock_guard lock(store().mutex);
  Taken& taken = store().taken;
  RecordedProgram& record = taken.programs[program];
  if (record.runs == 0) {
    record.name = name;
    record.calls.resize(clock.seconds.size());
    record.self.resize(clock.seconds.size());
  }
  ++record.runs;
  record.nanoseconds += end - start;
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
  return std::exchange(store().taken, {});
}

}  // namespace npu
