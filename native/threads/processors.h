// How many cores this process may use.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace npu {

// NPU_NUM_THREADS; 0 where it is not set.
int wanted_threads();

// The cores of each device from a text such as "0-1;2,3"; empty where it is none, or names a core that the
// process may not use.
std::vector<std::vector<int>> parse_cores(const std::string& text);
// The cores that the process may use of each of the machine's memory (NUMA) nodes, which `root` describes.
std::map<int, std::vector<int>> memory_nodes(const std::string& root = "/sys/devices/system/node");
// The cores of devices that no node boundary divides unless there are fewer devices than nodes; empty for one
// device, one node, or more devices than cores.
std::vector<std::vector<int>> cores_by_node(int count, const std::map<int, std::vector<int>>& nodes);
// The node that has all of some cores; -1 where there is none, or only one.
int node_of(const std::vector<int>& cores, const std::map<int, std::vector<int>>& nodes);
// Those of NPU_DEVICE_CORES; without, and without NPU_NUM_THREADS, the devices' shares of several memory
// nodes. Empty where neither says.
const std::vector<std::vector<int>>& device_cores();

// The numbers of a text such as "0,2" if each is below `count` and there once; empty for other texts.
std::vector<int> parse_devices(const std::string& text, int count);

// The cores that the scheduler lets the process use, or fewer where a quota of its control group (cpu.max, or
// cpu.cfs_quota_us of the first version) lets it use less time than they have. `groups` is the file that
// names its groups, `root` the folder in which they are.
int processors(const std::string& groups = "/proc/self/cgroup", const std::string& root = "/sys/fs/cgroup");

}  // namespace npu
