// Parallel loops on the thread pool that oneDNN also uses (threads/).
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "core/loops.h"

namespace npu {

// Sets the calling thread's team size for a scope.
class TeamScope {
 public:
  explicit TeamScope(int threads) : before_(omp_get_max_threads()), changed_(threads != before_) {
    if (changed_) omp_set_num_threads(threads);
  }
  ~TeamScope() {
    if (changed_) omp_set_num_threads(before_);
  }
  TeamScope(const TeamScope&) = delete;
  TeamScope& operator=(const TeamScope&) = delete;

 private:
  int before_;
  bool changed_;
};

// Calls body(begin, end) on disjoint ranges that cover [0, total), none shorter than `grain` unless it is the
// only one. Small work stays on the calling thread. `body` must not throw.
template <class Body>
void parallel_for(std::int64_t total, std::int64_t grain, Body&& body) {
  if (total <= 0) return;
  const std::int64_t parts =
      std::min<std::int64_t>(omp_get_max_threads(), total / std::max<std::int64_t>(grain, 1));
  if (parts <= 1) {
    body(std::int64_t{0}, total);
    return;
  }
#pragma omp parallel num_threads(static_cast<int>(parts))
  {
    const std::int64_t team = omp_get_num_threads();
    const std::int64_t self = omp_get_thread_num();
    const std::int64_t step = total / team;
    const std::int64_t extra = total % team;
    const std::int64_t begin = self * step + std::min(self, extra);
    body(begin, begin + step + (self < extra ? 1 : 0));
  }
}

}  // namespace npu
