// A parallel region of the framework: its first member runs the function, the others serve the pool.
#include "threads/guests.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <exception>

#include "threads/team.h"

namespace npu {
namespace {

struct OpenMp {
  void (*parallel)(RegionFunction, void*, unsigned, unsigned) = nullptr;
  int (*max_threads)() = nullptr;
  int (*thread_num)() = nullptr;
  int (*num_threads)() = nullptr;
  int (*in_parallel)() = nullptr;
};

OpenMp host;
std::atomic<bool> known = false;

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

struct Call {
  const std::function<void()>& function;
  int expected;
  std::atomic<bool> over = false;
  std::exception_ptr error = nullptr;
};

void lead(Call& call) {
  expect_guests(host.num_threads() - 1 - call.expected);  // fewer may have come
  try {
    call.function();
  } catch (...) {
    call.error = std::current_exception();
  }
  dismiss_guests(call.over);
}

void take_part(void* data) {
  Call& call = *static_cast<Call*>(data);
  const int place = host.thread_num();
  if (place == 0) {
    lead(call);
  } else {
    serve_as_guest(place - 1, call.over);
  }
}

bool can_come() {
  if (!known.load(std::memory_order_acquire) || getpid() != gettid()) return false;
  const int size = team_size();
  return size > 1 && host.max_threads() == size && !host.in_parallel() && member_count() == 1;
}

}  // namespace

bool take_guests_of(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) return false;
  if (known.load(std::memory_order_acquire)) return true;
  const bool found = find(handle, "GOMP_parallel", host.parallel) &&
                     find(handle, "omp_get_max_threads", host.max_threads) &&
                     find(handle, "omp_get_thread_num", host.thread_num) &&
                     find(handle, "omp_get_num_threads", host.num_threads) &&
                     find(handle, "omp_in_parallel", host.in_parallel);
  if (!found) return false;
  pthread_atfork(nullptr, nullptr, [] { known = false; });  // a child has none of the threads
  known.store(true, std::memory_order_release);
  return true;
}

void run_with_guests(const std::function<void()>& function) {
  if (!can_come()) {
    function();
    return;
  }
  const int guests = team_size() - 1;
  Call call{function, guests};
  expect_guests(guests);
  host.parallel(&take_part, &call, static_cast<unsigned>(guests + 1), 0);
  if (call.error) std::rethrow_exception(call.error);
}

}  // namespace npu
