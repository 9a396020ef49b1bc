// A condition variable that waits through the C library. GCC 12 binds std::condition_variable::wait to its
// own libstdc++ (GLIBCXX_3.4.30), and this one function would exclude systems with glibc 2.34.
#pragma once

#include <pthread.h>

#include <cassert>
#include <condition_variable>
#include <mutex>

namespace npu {

class Condition : public std::condition_variable {
 public:
  void wait(std::unique_lock<std::mutex>& lock) {
    [[maybe_unused]] const int failed = pthread_cond_wait(native_handle(), lock.mutex()->native_handle());
    assert(failed == 0 && "the lock is held by this thread");
  }

  template <typename Predicate>
  void wait(std::unique_lock<std::mutex>& lock, Predicate reached) {
    while (!reached()) wait(lock);
  }
};

}  // namespace npu
