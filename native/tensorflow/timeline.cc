#include "tensorflow/timeline.h"

#include <chrono>
#include <utility>

namespace npu::tf {
namespace {

constexpr std::size_t kMost = 1 << 20;

std::int64_t now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

int thread_number() {
  static std::atomic<int> next{0};
  static thread_local const int number = next.fetch_add(1);
  return number;
}

}  // namespace

Timeline& Timeline::get() {
  static auto* timeline = new Timeline;  // threads of TensorFlow may outlive static objects
  return *timeline;
}

void Timeline::add(const std::string& name, bool on_npu, std::int64_t start, std::int64_t end) {
  const int thread = thread_number();
  const std::lock_guard lock(mutex_);
  if (spans_.size() < kMost) spans_.push_back({name, on_npu, thread, start, end});
}

std::vector<Span> Timeline::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(spans_, {});
}

Timed::Timed(const std::string& name, bool on_npu) : name_(name), on_npu_(on_npu) {
  if (Timeline::get().on()) start_ = now();
}

Timed::~Timed() {
  if (start_ != 0) Timeline::get().add(name_, on_npu_, start_, now());
}

}  // namespace npu::tf
