// The entry points that compilers call for OpenMP, on the pool of this library; adopt.cc gives them to
// oneDNN.
#include "threads/openmp.h"

#include <algorithm>

#include "threads/adopt.h"
#include "threads/team.h"

extern "C" {

int omp_get_max_threads() { return npu::team_size(); }
int omp_get_num_threads() { return npu::member_count(); }
int omp_get_thread_num() { return npu::member_index(); }
int omp_in_parallel() { return npu::member_count() > 1; }

void omp_set_num_threads(int size) {
  npu::set_team_size(size);
  if (npu::other_set_num_threads) npu::other_set_num_threads(size);
}

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

// The iterations [first, last) of this member's next part; false where it has no more.
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
}

namespace npu {

const std::vector<EntryPoint>& openmp_entry_points() {
  static const std::vector<EntryPoint> points{
      {"omp_get_max_threads", reinterpret_cast<void*>(&omp_get_max_threads)},
      {"omp_get_num_threads", reinterpret_cast<void*>(&omp_get_num_threads)},
      {"omp_get_thread_num", reinterpret_cast<void*>(&omp_get_thread_num)},
      {"omp_in_parallel", reinterpret_cast<void*>(&omp_in_parallel)},
      {"omp_set_num_threads", reinterpret_cast<void*>(&omp_set_num_threads)},
      {"GOMP_parallel", reinterpret_cast<void*>(&GOMP_parallel)},
      {"GOMP_parallel_start", reinterpret_cast<void*>(&GOMP_parallel_start)},
      {"GOMP_parallel_end", reinterpret_cast<void*>(&GOMP_parallel_end)},
      {"GOMP_barrier", reinterpret_cast<void*>(&GOMP_barrier)},
      {"GOMP_loop_static_start", reinterpret_cast<void*>(&GOMP_loop_static_start)},
      {"GOMP_loop_static_next", reinterpret_cast<void*>(&GOMP_loop_static_next)},
      {"GOMP_loop_end", reinterpret_cast<void*>(&GOMP_loop_end)},
      {"GOMP_loop_end_nowait", reinterpret_cast<void*>(&GOMP_loop_end_nowait)},
  };
  return points;
}

}  // namespace npu
