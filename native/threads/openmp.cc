// The functions that compilers call for OpenMP, on the pool of this library.
//
// This library's own code finds them by OpenMP's names, which stay inside. oneDNN's private copy finds them
// by names with a prefix (private_onednn.py), so that no other OpenMP in the process can take their place.
#include <algorithm>

#include "threads/team.h"

extern "C" {

int omp_get_max_threads() { return npu::team_size(); }
int omp_get_num_threads() { return npu::member_count(); }
int omp_get_thread_num() { return npu::member_index(); }
int omp_in_parallel() { return npu::member_count() > 1; }

void omp_set_num_threads(int size) { npu::set_team_size(size); }

void GOMP_parallel(npu::RegionFunction function, void* data, unsigned size, unsigned) {
  npu::run_region(function, data, static_cast<int>(size));
}

void GOMP_parallel_start(npu::RegionFunction function, void* data, unsigned size) {
  npu::open_region(function, data, static_cast<int>(size));
}

void GOMP_parallel_end() { npu::close_region(); }
void GOMP_barrier() { npu::member_barrier(); }

struct StaticLoop {
  long start, end, step, chunk;
};

}  // extern "C"

namespace {

thread_local StaticLoop loop;

// The iterations [first, last) of this member's next chunk; false if there are none.
bool next_part(long& first, long& last) {
  const long steps =
      loop.step > 0 ? loop.end - loop.start + loop.step - 1 : loop.start - loop.end - loop.step - 1;
  const long total = std::max(steps / (loop.step > 0 ? loop.step : -loop.step), 0L);
  const long members = npu::member_count(), self = npu::member_index();
  const long trip = npu::member_trip()++;
  if (loop.chunk > 0) {
    first = (trip * members + self) * loop.chunk;
    last = std::min(first + loop.chunk, total);
    return first < total;
  }
  const long each = total / members, extra = total % members;
  first = self * each + std::min(self, extra);
  last = first + each + (self < extra ? 1 : 0);
  return trip == 0 && first < last;
}

bool next_range(long* start, long* end) {
  long first = 0, last = 0;
  if (!next_part(first, last)) return false;
  *start = loop.start + first * loop.step;
  *end = loop.start + last * loop.step;
  return true;
}

}  // namespace

extern "C" {

bool GOMP_loop_static_start(long start, long end, long step, long chunk, long* first, long* last) {
  loop = {start, end, step, chunk};
  npu::member_trip() = 0;
  return next_range(first, last);
}

bool GOMP_loop_static_next(long* first, long* last) { return next_range(first, last); }
void GOMP_loop_end_nowait() {}
void GOMP_loop_end() { npu::member_barrier(); }

#define NPU_FOR_ONEDNN(name) __attribute__((visibility("default"), alias(#name))) decltype(name) npu_##name;

NPU_FOR_ONEDNN(omp_get_max_threads)
NPU_FOR_ONEDNN(omp_get_num_threads)
NPU_FOR_ONEDNN(omp_get_thread_num)
NPU_FOR_ONEDNN(omp_in_parallel)
NPU_FOR_ONEDNN(GOMP_parallel)
NPU_FOR_ONEDNN(GOMP_parallel_start)
NPU_FOR_ONEDNN(GOMP_parallel_end)
NPU_FOR_ONEDNN(GOMP_barrier)
NPU_FOR_ONEDNN(GOMP_loop_static_start)
NPU_FOR_ONEDNN(GOMP_loop_static_next)
NPU_FOR_ONEDNN(GOMP_loop_end)
NPU_FOR_ONEDNN(GOMP_loop_end_nowait)

#undef NPU_FOR_ONEDNN

}  // extern "C"
