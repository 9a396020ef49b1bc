// Thread teams: OpenMP's parallel regions, ours and oneDNN's, run on them. Each device has its own pool of
// workers.
//
// A region consists of shares, one per member of the team. The thread that opens a region runs the first
// share and then every other share that no worker has begun: on a machine whose cores are busy with other
// programs a worker may be descheduled for milliseconds, and nothing waits for it unless it is in the middle
// of a share.
#pragma once

#include <atomic>
#include <vector>

namespace npu {

using RegionFunction = void (*)(void*);

// The size of teams that the calling thread opens: NPU_NUM_THREADS, else OMP_NUM_THREADS, else the number of
// cores the process may use, unless set.
int team_size();
void set_team_size(int size);

// The pool whose workers run the shares of regions that the calling thread opens; there are kMostPools.
constexpr int kMostPools = 64;
int team_pool();
void set_team_pool(int pool);

// Selects the pool of a device for a scope.
class PoolScope {
 public:
  explicit PoolScope(int pool) : before_(team_pool()) { set_team_pool(pool); }
  ~PoolScope() { set_team_pool(before_); }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  int before_;
};

// Binds workers that a pool starts from now on to these cores; empty: to no core.
void set_pool_cores(int pool, std::vector<int> cores);
// Binds the calling thread to the cores of a pool, if it has any.
void bind_to_cores(int pool);

// The calling thread's index in its region; 0 of 1 outside regions.
int member_index();
int member_count();

// Calls the function once per member, concurrently if there are workers for them. A nested region has one
// member. `size` 0 means team_size().
void run_region(RegionFunction function, void* data, int size);

// The same in two parts, between which the caller runs the first share itself.
void open_region(RegionFunction function, void* data, int size);
void close_region();

// A barrier: waits for all members of the region.
void member_barrier();

// Announces foreign threads that are about to run shares; fewer workers are woken in exchange. A negative
// count withdraws those that do not arrive.
void expect_guests(int count);

// Lets the calling thread, an expected guest, run shares like a worker, until guests are dismissed.
void serve_as_guest(int worker, const std::atomic<bool>& over);
void dismiss_guests(std::atomic<bool>& over);

// This member's progress in a loop that the region's members divide among themselves.
long& member_trip();

}  // namespace npu
