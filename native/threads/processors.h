// The number of cores this process may use.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace npu {

// NPU_NUM_THREADS; 0 if it is not set.
int wanted_threads();

// Parses the cores of each device from a text such as "0-1;2,3"; empty if it is malformed, or names a core
// that the process may not use.
std::vector<std::vector<int>> parse_cores(const std::string& text);
// The usable cores of each memory (NUMA) node of the machine, which `root` describes.
std::map<int, std::vector<int>> memory_nodes(const std::string& root = "/sys/devices/system/node");
// The cores of each device; devices span nodes only if there are fewer devices than nodes. Empty for one
// device, one node, or more devices than cores.
std::vector<std::vector<int>> cores_by_node(int count, const std::map<int, std::vector<int>>& nodes);
// The node that contains all of the cores; -1 if there is none, or only one.
int node_of(const std::vector<int>& cores, const std::map<int, std::vector<int>>& nodes);
// Those of NPU_DEVICE_CORES; without it and without NPU_NUM_THREADS, the devices' shares of several memory
// nodes. Empty otherwise.
const std::vector<std::vector<int>>& device_cores();

// The numbers of a text such as "0,2" if each is below `count` and unique; empty for other texts.
std::vector<int> parse_devices(const std::string& text, int count);

// The cores on which the scheduler may run the process, or fewer if a quota of its control group (cpu.max, or
// cpu.cfs_quota_us of version 1) allows less CPU time. `groups` is the file that names its groups, `root` the
// folder that contains them.
int processors(const std::string& groups = "/proc/self/cgroup", const std::string& root = "/sys/fs/cgroup");

}  // namespace npu
