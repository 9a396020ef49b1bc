// Threads with one queue each, started when devices first work concurrently.
#include "tensorflow/device_threads.h"

#include <pthread.h>

#include <csignal>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/condition.h"
#include "core/device.h"
#include "threads/team.h"

namespace npu::tf {
namespace {

thread_local bool in_device_thread = false;

// Runs its work in order until the process ends.
class Thread {
 public:
  explicit Thread(int device) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // leave signals to the program's threads
    std::thread thread([this, device] { serve(device); });
    pthread_setname_np(thread.native_handle(), ("npu:" + std::to_string(device) + " steps").c_str());
    thread.detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void add(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    filled_.notify_one();
  }

 private:
  void serve(int device) {
    in_device_thread = true;
    set_team_pool(device);
    bind_to_cores(device);
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        filled_.wait(lock, [&] { return !queue_.empty(); });
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
    }
  }

  std::mutex mutex_;
  Condition filled_;
  std::deque<std::function<void()>> queue_;
};

// Never destroyed: TensorFlow may call the devices until the process has ended.
class Threads {
 public:
  static Threads& get() {
    static const bool registered = [] {
      current = new Threads();
      pthread_atfork(nullptr, nullptr, [] { current = new Threads(); });  // a child has no threads
      return true;
    }();
    static_cast<void>(registered);
    return *current;
  }

  Thread& of(int device) {
    const std::lock_guard lock(mutex_);
    auto& thread = threads_[static_cast<std::size_t>(device)];
    if (!thread) thread = std::make_unique<Thread>(device);
    return *thread;
  }

 private:
  inline static Threads* current = nullptr;
  std::mutex mutex_;
  std::unique_ptr<Thread> threads_[kMostPools];
};

// Counts unfinished work.
class Countdown {
 public:
  explicit Countdown(int count) : left_(count) {}
  void done() {
    const std::lock_guard lock(mutex_);
    if (--left_ == 0) ended_.notify_all();  // under the lock: the waiter destroys this when it has it
  }
  void wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return left_ == 0; });
  }

 private:
  std::mutex mutex_;
  Condition ended_;
  int left_;
};

}  // namespace

void DeviceThreads::Group::run(int own) {
  const auto here = [&](int device) { return device == own || in_device_thread; };
  int others = 0;
  for (const auto& [device, work] : work_) others += here(device) ? 0 : 1;
  Countdown countdown(others);
  for (const auto& [device, work] : work_) {
    if (here(device)) continue;
    Threads::get().of(device).add([&countdown, &work = work] {
      work();
      countdown.done();
    });
  }
  for (const auto& [device, work] : work_) {
    if (here(device)) work();
  }
  countdown.wait();
}

}  // namespace npu::tf
