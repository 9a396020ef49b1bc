// Teams of threads: what OpenMP's parallel regions run on, ours and oneDNN's. Each device has a pool of
// workers of its own.
//
// A region consists of shares, one for each member of the team. The thread that opens a region does the first
// share and then every other one that no worker has begun: on a machine whose cores are busy with other
// programs a worker may be off its core for milliseconds, and nothing waits for it unless it is in the middle
// of a share.
#pragma once

#include <atomic>
#include <vector>

namespace npu {

using RegionFunction = void (*)(void*);

// The size of teams that the calling thread opens: NPU_NUM_THREADS, else OMP_NUM_THREADS, else the number of
// cores that the process may use, until set.
int team_size();
void set_team_size(int size);

// The pool whose workers do the shares of regions that the calling thread opens; there are kMostPools.
constexpr int kMostPools = 64;
int team_pool();
void set_team_pool(int pool);

// Uses the pool of a device in a scope.
class PoolScope {
 public:
  explicit PoolScope(int pool) : before_(team_pool()) { set_team_pool(pool); }
  ~PoolScope() { set_team_pool(before_); }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  int before_;
};

// Binds the workers that a pool starts from now on to these cores; none: to no core.
void set_pool_cores(int pool, std::vector<int> cores);
// Binds the calling thread to the cores of a pool, if it has any.
void bind_to_cores(int pool);

// The calling thread's place in its region; 0 of 1 outside of regions.
int member_index();
int member_count();

// Calls the function once for each member, at the same time where there are workers for them. A region inside
// of a region has one member. `size` 0 means team_size().
void run_region(RegionFunction function, void* data, int size);

// The same in two parts, between which the caller does the first share itself.
void open_region(RegionFunction function, void* data, int size);
void close_region();

// Waits until all members of the region have come here.
void member_barrier();

// Threads from elsewhere that are about to do shares; so many fewer workers are called. Those that do not
// come are taken back with a negative count.
void expect_guests(int count);

// Has the calling thread, an expected guest, do shares as a worker does, until they are dismissed.
void serve_as_guest(int worker, const std::atomic<bool>& over);
void dismiss_guests(std::atomic<bool>& over);

// How far this member has come in a loop that the region's members divide among themselves.
long& member_trip();

}  // namespace npu
