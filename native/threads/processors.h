// How many cores this process may use.
#pragma once

#include <string>

namespace npu {

// NPU_NUM_THREADS; 0 where it is not set.
int wanted_threads();

// The cores that the scheduler lets the process use, or fewer where a quota of its control group (cpu.max, or
// cpu.cfs_quota_us of the first version) lets it use less time than they have. `groups` is the file that
// names its groups, `root` the folder in which they are.
int processors(const std::string& groups = "/proc/self/cgroup", const std::string& root = "/sys/fs/cgroup");

}  // namespace npu
