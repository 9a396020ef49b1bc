// The pool: a list of open regions, workers that take shares of the oldest, waits that spin shortly and then
// sleep.
#include "threads/team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <bitset>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "threads/invalid.h"
#include "threads/processors.h"
#include "threads/wait.h"

namespace npu {
namespace {

constexpr int kMostMembers = 1024;
// Spinlock, held for a few instructions.
class Spinlock {
 public:
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) {
      for (int i = 0; held_.load(std::memory_order_relaxed); ++i) {
        if (i < kPausesPerLook) {
          relax();
        } else {
          sched_yield();  // the holder may be preempted
        }
      }
    }
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_ = false;
};

struct Region;

// The calling thread's state.
struct Member {
  Region* region = nullptr;
  int index = 0;
  int count = 1;
  long trip = 0;
};

struct Region {
  RegionFunction function = nullptr;
  void* data = nullptr;
  int size = 1;
  int team = 1;  // of regions that the members open
  Member outer;  // the place of the thread that opened it
  std::unique_ptr<Region> below;

  // Under the pool's lock:
  Region* next = nullptr;
  std::bitset<kMostMembers> begun;
  std::atomic<int> waiting = 0;  // shares not begun

  std::atomic<bool> invalid = false;          // a member raised the flag (invalid.h)
  Word pending = 0;                           // shares that others have not finished, and kAsleep
  Word arrived = 0, phase = 0, sleepers = 0;  // of barriers
};

constexpr std::uint32_t kAsleep = 1u << 31;

thread_local Member here;
thread_local int own_team = 0;
thread_local int own_pool = 0;
thread_local std::unique_ptr<Region> opened;  // by open_region, the innermost
thread_local std::unique_ptr<Region> spare;

int default_team() {
  static const int size = [] {
    const char* text = std::getenv("OMP_NUM_THREADS");
    int wanted = wanted_threads();
    if (wanted <= 0) wanted = text ? std::atoi(text) : 0;
    return std::clamp(wanted > 0 ? wanted : processors(), 1, kMostMembers);
  }();
  return size;
}

struct PoolCores {
  std::mutex mutex;
  std::vector<int> cores[kMostPools];
};

PoolCores& pool_cores() {
  static auto* all = new PoolCores();
  return *all;
}

void run_share(Region& region, int index) {
  const Member before = here;
  const int team = own_team;
  here = {&region, index, region.size, 0};
  own_team = region.team;
  const bool raised = invalid_raised();
  clear_invalid();
  region.function(region.data);
  if (invalid_raised()) region.invalid.store(true, std::memory_order_relaxed);
  if (raised) raise_invalid();
  here = before;
  own_team = team;
}

class Pool {
 public:
  // The pool of the calling thread.
  static Pool& get() {
    // Workers run until the process ends.
    static const bool registered = [] {
      pthread_atfork(nullptr, nullptr, [] {  // a child has no workers
        for (auto& pool : pools) pool.store(nullptr, std::memory_order_relaxed);
      });
      return true;
    }();
    static_cast<void>(registered);
    auto& place = pools[own_pool];
    if (Pool* known = place.load(std::memory_order_acquire)) return *known;
    auto made = std::make_unique<Pool>(own_pool);
    Pool* nobody = nullptr;
    if (place.compare_exchange_strong(nobody, made.get(), std::memory_order_acq_rel)) return *made.release();
    return *nobody;
  }

  explicit Pool(int index) : index_(index) {}

  void open(Region& region) {
    if (workers_.load(std::memory_order_acquire) < region.size - 1) add_workers(region.size - 1);
    region.begun.reset();
    region.begun.set(0);
    region.next = nullptr;
    region.waiting.store(region.size - 1, std::memory_order_relaxed);
    region.pending.store(static_cast<std::uint32_t>(region.size - 1), std::memory_order_relaxed);
    region.arrived.store(0, std::memory_order_relaxed);
    {
      const std::lock_guard lock(lock_);
      Region** end = &first_;
      while (*end) end = &(*end)->next;
      *end = &region;
      any_.store(true, std::memory_order_relaxed);
    }
    generation_.fetch_add(1, std::memory_order_seq_cst);
    const int called = region.size - 1 - guests_.load(std::memory_order_seq_cst);
    if (called > 0 && sleepers_.load(std::memory_order_seq_cst) > 0) futex_wake(&generation_, called);
    ring();
  }

  void expect(int guests) { guests_.fetch_add(guests, std::memory_order_seq_cst); }

  void serve_as_guest(int worker, const std::atomic<bool>& over) {
    while (!over.load(std::memory_order_acquire)) {
      const std::uint32_t seen = generation_.load(std::memory_order_seq_cst);
      if (work(worker)) continue;
      const auto called = [&] {
        return generation_.load(std::memory_order_seq_cst) != seen || over.load(std::memory_order_seq_cst);
      };
      if (spin_until(called)) continue;
      const std::uint32_t rung = bell_.load(std::memory_order_seq_cst);
      sleeping_guests_.fetch_add(1, std::memory_order_seq_cst);
      if (!called()) futex_wait(bell_, rung);
      sleeping_guests_.fetch_sub(1, std::memory_order_relaxed);
    }
    expect(-1);
    while (work(worker)) continue;  // regions whose openers counted on this thread
  }

  void dismiss_guests(std::atomic<bool>& over) {
    over.store(true, std::memory_order_seq_cst);
    ring();
  }

  // Runs the shares that no worker has begun, then waits for the others.
  void close(Region& region) {
    while (region.waiting.load(std::memory_order_relaxed) > 0) {
      int index = -1;
      {
        const std::lock_guard lock(lock_);
        if (region.waiting.load(std::memory_order_relaxed) > 0) index = take(region, region.size - 1);
      }
      if (index < 0) break;
      run_share(region, index);
      region.pending.fetch_sub(1, std::memory_order_acq_rel);
    }
    const auto done = [&] { return region.pending.load(std::memory_order_acquire) == 0; };
    if (spin_until(done)) return;
    std::uint32_t left = region.pending.fetch_or(kAsleep, std::memory_order_acq_rel) | kAsleep;
    while (left != kAsleep) {
      futex_wait(region.pending, left);
      left = region.pending.load(std::memory_order_acquire);
    }
  }

 private:
  // Wakes guests; workers, who would compete with them for their cores, sleep by another word.
  void ring() {
    if (sleeping_guests_.load(std::memory_order_seq_cst) == 0) return;
    bell_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(&bell_, INT_MAX);
  }

  // Takes a share not begun, the wanted one if possible; under the lock.
  int take(Region& region, int wanted) {
    int index = wanted < region.size ? wanted : region.size - 1;
    for (int i = 0; region.begun.test(static_cast<std::size_t>(index)) && i < region.size; ++i) {
      index = index > 0 ? index - 1 : region.size - 1;
    }
    region.begun.set(static_cast<std::size_t>(index));
    if (region.waiting.fetch_sub(1, std::memory_order_relaxed) == 1) {
      Region** place = &first_;
      while (*place != &region) place = &(*place)->next;
      *place = region.next;
      any_.store(first_ != nullptr, std::memory_order_relaxed);
    }
    return index;
  }

  // Runs one share of the oldest region; false if there is none.
  bool work(int worker) {
    if (!any_.load(std::memory_order_relaxed)) return false;
    Region* region = nullptr;
    int index = 0;
    {
      const std::lock_guard lock(lock_);
      region = first_;
      if (!region) return false;
      index = take(*region, worker + 1);
    }
    run_share(*region, index);
    // From here on the region may be destroyed; only its address is used.
    Word* pending = &region->pending;
    if (pending->fetch_sub(1, std::memory_order_acq_rel) == (kAsleep | 1)) futex_wake(pending, 1);
    return true;
  }

  void serve(int worker) {
    own_pool = index_;
    bind_to_cores(index_);
    for (;;) {
      const std::uint32_t seen = generation_.load(std::memory_order_seq_cst);
      if (work(worker)) continue;
      const auto called = [&] { return generation_.load(std::memory_order_acquire) != seen; };
      if (spin_until(called)) continue;
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      futex_wait(generation_, seen);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  void add_workers(int count) {
    const std::lock_guard lock(adding_);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
    try {
      for (int worker = workers_.load(); worker < count; ++worker) {
        std::thread thread([this, worker] { serve(worker); });
        pthread_setname_np(thread.native_handle(),
                           index_ ? ("npu:" + std::to_string(index_)).c_str() : "npu");
        thread.detach();
        workers_.store(worker + 1, std::memory_order_release);
      }
    } catch (const std::system_error& error) {
      std::fprintf(stderr, "npu: %d threads cannot be started: %s\n", count, error.what());
      std::abort();
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  inline static std::atomic<Pool*> pools[kMostPools] = {};

  int index_;
  Spinlock lock_;
  Region* first_ = nullptr;  // regions with shares not begun, oldest first
  std::atomic<bool> any_ = false;
  Word generation_ = 0;  // regions opened so far
  std::atomic<int> sleepers_ = 0;
  std::atomic<int> workers_ = 0;
  std::atomic<int> guests_ = 0;
  Word bell_ = 0;
  std::atomic<int> sleeping_guests_ = 0;
  std::mutex adding_;
};

void prepare(Region& region, RegionFunction function, void* data, int size) {
  const int wanted = std::clamp(size > 0 ? size : team_size(), 1, kMostMembers);
  region.function = function;
  region.data = data;
  region.size = here.count > 1 ? 1 : wanted;
  region.team = team_size();
  region.outer = here;
  region.invalid.store(false, std::memory_order_relaxed);
  if (region.size > 1) Pool::get().open(region);
  here = {&region, 0, region.size, 0};
}

void end(Region& region) {
  here = region.outer;
  if (region.size > 1) Pool::get().close(region);
  if (region.invalid.load(std::memory_order_relaxed)) raise_invalid();
}

}  // namespace

int team_size() { return own_team ? own_team : default_team(); }
void set_team_size(int size) { own_team = std::clamp(size, 1, kMostMembers); }
int team_pool() { return own_pool; }
void set_team_pool(int pool) { own_pool = std::clamp(pool, 0, kMostPools - 1); }

void set_pool_cores(int pool, std::vector<int> cores) {
  const std::lock_guard lock(pool_cores().mutex);
  pool_cores().cores[pool] = std::move(cores);
}

void bind_to_cores(int pool) {
  cpu_set_t set;
  CPU_ZERO(&set);
  {
    const std::lock_guard lock(pool_cores().mutex);
    for (const int core : pool_cores().cores[pool]) CPU_SET(static_cast<std::size_t>(core), &set);
  }
  if (CPU_COUNT(&set) > 0) sched_setaffinity(0, sizeof(set), &set);
}

int member_index() { return here.index; }
int member_count() { return here.count; }
long& member_trip() { return here.trip; }

void run_region(RegionFunction function, void* data, int size) {
  open_region(function, data, size);
  function(data);
  close_region();
}

void open_region(RegionFunction function, void* data, int size) {
  auto region = spare ? std::move(spare) : std::make_unique<Region>();
  prepare(*region, function, data, size);
  region->below = std::move(opened);
  opened = std::move(region);
}

void close_region() {
  auto region = std::move(opened);
  opened = std::move(region->below);
  end(*region);
  spare = std::move(region);
}

void expect_guests(int count) { Pool::get().expect(count); }

void serve_as_guest(int worker, const std::atomic<bool>& over) { Pool::get().serve_as_guest(worker, over); }

void dismiss_guests(std::atomic<bool>& over) { Pool::get().dismiss_guests(over); }

void member_barrier() {
  if (here.count == 1) return;
  Region& region = *here.region;
  const std::uint32_t phase = region.phase.load(std::memory_order_acquire);
  if (region.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(region.size)) {
    region.arrived.store(0, std::memory_order_relaxed);
    region.phase.fetch_add(1, std::memory_order_seq_cst);
    if (region.sleepers.load(std::memory_order_seq_cst) > 0) futex_wake(&region.phase, INT_MAX);
    return;
  }
  const auto over = [&] { return region.phase.load(std::memory_order_acquire) != phase; };
  if (spin_until(over)) return;
  region.sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (!over()) futex_wait(region.phase, phase);
  region.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace npu
