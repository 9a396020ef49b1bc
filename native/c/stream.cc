#include "c/stream.h"

namespace npu {

Stream::Stream() : thread_([this] { serve(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::submit(Work work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    ++submitted_;
  }
  changed_.notify_all();
}

std::optional<Failure> Stream::synchronize(std::optional<std::chrono::milliseconds> limit) {
  std::unique_lock lock(mutex_);
  const std::uint64_t goal = submitted_;
  const auto reached = [&] { return done_ >= goal; };
  if (!limit) {
    changed_.wait(lock, reached);
  } else if (!changed_.wait_for(lock, *limit, reached)) {
    return {};
  }
  return std::exchange(first_, Failure());
}

bool Stream::idle() {
  const std::lock_guard lock(mutex_);
  return done_ == submitted_;
}

void Stream::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || !work_.empty(); });
    if (work_.empty()) return;
    Work work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    Failure failure;
    try {
      work();
    } catch (...) {
      failure = current_failure();
    }
    work = nullptr;  // release its captures before signalling completion
    lock.lock();
    if (failure.code && !first_.code) first_ = std::move(failure);
    ++done_;
    changed_.notify_all();
  }
}

std::shared_ptr<Event::Mark> Event::mark() {
  const std::lock_guard lock(mutex_);
  return mark_;
}

void Event::record(Stream& stream) {
  auto next = std::make_shared<Mark>();
  {
    const std::lock_guard lock(mutex_);
    mark_ = next;
  }
  stream.submit([next] {
    const std::lock_guard lock(next->mutex);
    next->time = Clock::now();
    next->changed.notify_all();
  });
}

void Event::wait_in(Stream& stream) {
  const auto current = mark();
  if (!current) return;
  stream.submit([current] {
    std::unique_lock lock(current->mutex);
    current->changed.wait(lock, [&] { return current->time.has_value(); });
  });
}

void Event::synchronize() {
  const auto current = mark();
  if (!current) return;
  std::unique_lock lock(current->mutex);
  current->changed.wait(lock, [&] { return current->time.has_value(); });
}

bool Event::reached() {
  const auto current = mark();
  if (!current) return true;
  const std::lock_guard lock(current->mutex);
  return current->time.has_value();
}

std::optional<Event::Clock::time_point> Event::time() {
  const auto current = mark();
  if (!current) return {};
  const std::lock_guard lock(current->mutex);
  return current->time;
}

void Event::reset() {
  const std::lock_guard lock(mutex_);
  mark_ = nullptr;
}

}  // namespace npu
