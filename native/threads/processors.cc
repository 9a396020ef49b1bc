// Affinity, memory nodes, and the quotas of control groups of both versions.
#include "threads/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

namespace npu {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

double quota_in(const std::filesystem::path& folder) {
  std::string quota;
  double period = 0;
  if (std::ifstream both(folder / "cpu.max"); both >> quota >> period) {
    return quota == "max" || period <= 0 ? kNoLimit : std::atof(quota.c_str()) / period;
  }
  double time = 0;
  std::ifstream first(folder / "cpu.cfs_quota_us"), second(folder / "cpu.cfs_period_us");
  return first >> time && second >> period && time > 0 && period > 0 ? time / period : kNoLimit;
}

// The minimum quota of a group and its ancestors.
double least_quota(const std::filesystem::path& root, const std::filesystem::path& group) {
  double least = quota_in(root);
  std::filesystem::path folder = root;
  for (const auto& name : group) {
    folder /= name;
    least = std::min(least, quota_in(folder));
  }
  return least;
}

bool names_cpu(const std::string& controllers) {
  std::istringstream names(controllers);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

double group_quota(const std::string& groups, const std::filesystem::path& root) {
  double least = kNoLimit;
  std::ifstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // hierarchy:controllers:/path
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(std::min(second + 2, line.size()));
    if (controllers.empty()) {
      least = std::min(least, least_quota(root, group));
    } else if (names_cpu(controllers)) {
      for (const std::string& folder : {controllers, std::string("cpu")}) {
        least = std::min(least, least_quota(root / folder, group));
      }
    }
  }
  return least;
}

int allowed_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
}

}  // namespace

int wanted_threads() {
  const char* text = std::getenv("NPU_NUM_THREADS");
  return text ? std::max(std::atoi(text), 0) : 0;
}

namespace {

// Parses a list such as "0-3,8"; empty if invalid.
std::vector<int> parse_ranges(const std::string& text) {
  std::vector<int> found;
  std::istringstream ranges(text);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = -1, last = -1;
    char dash = 0, more = 0;
    std::istringstream numbers(range);
    if (!(numbers >> first)) return {};
    last = first;
    if (numbers >> dash && (dash != '-' || !(numbers >> last) || numbers >> more)) return {};
    if (first < 0 || last < first || last >= CPU_SETSIZE) return {};
    for (int number = first; number <= last; ++number) found.push_back(number);
  }
  return found;
}

// True if the process may use a core; true for all if the affinity is unknown.
class Allowed {
 public:
  Allowed() { known_ = sched_getaffinity(0, sizeof(set_), &set_) == 0; }
  bool operator()(int core) const { return !known_ || CPU_ISSET(static_cast<std::size_t>(core), &set_); }

 private:
  cpu_set_t set_;
  bool known_;
};

}  // namespace

std::vector<std::vector<int>> parse_cores(const std::string& text) {
  std::vector<std::vector<int>> devices;
  std::istringstream sets(text);
  for (std::string set; std::getline(sets, set, ';');) {
    devices.push_back(parse_ranges(set));
    if (devices.back().empty() || !std::ranges::all_of(devices.back(), Allowed())) return {};
  }
  return devices;
}

std::map<int, std::vector<int>> memory_nodes(const std::string& root) {
  const auto line = [](const std::string& path) {
    std::ifstream file(path);
    std::string text;
    std::getline(file, text);
    return text;
  };
  std::map<int, std::vector<int>> nodes;
  const Allowed allowed;
  for (const int node : parse_ranges(line(root + "/online"))) {
    std::vector<int> cores = parse_ranges(line(root + "/node" + std::to_string(node) + "/cpulist"));
    std::erase_if(cores, [&](int core) { return !allowed(core); });
    if (!cores.empty()) nodes[node] = std::move(cores);
  }
  return nodes;
}

std::vector<std::vector<int>> cores_by_node(int count, const std::map<int, std::vector<int>>& nodes) {
  const auto known = static_cast<int>(nodes.size());
  if (count < 2 || known < 2) return {};
  std::vector<std::vector<int>> devices(static_cast<std::size_t>(count));
  int place = 0;
  for (const auto& [node, cores] : nodes) {
    // Of NPUs and nodes, the more numerous ones are divided evenly among the others.
    const int first = place * count / known;
    const int own = std::max((place + 1) * count / known - first, 1);
    const auto size = static_cast<int>(cores.size());
    if (own > size) return {};
    for (int i = 0; i < own; ++i) {
      auto& device = devices[static_cast<std::size_t>(first + i)];
      device.insert(device.end(), cores.begin() + i * size / own, cores.begin() + (i + 1) * size / own);
    }
    ++place;
  }
  return devices;
}

int node_of(const std::vector<int>& cores, const std::map<int, std::vector<int>>& nodes) {
  if (cores.empty() || nodes.size() < 2) return -1;
  for (const auto& [node, all] : nodes) {
    const auto here = [&](int core) { return std::ranges::find(all, core) != all.end(); };
    if (std::ranges::all_of(cores, here)) return node;
  }
  return -1;
}

const std::vector<std::vector<int>>& device_cores() {
  static const auto* cores = [] {
    const char* text = std::getenv("NPU_DEVICE_CORES");
    const char* number = std::getenv("NPU_DEVICE_COUNT");
    const bool divided = !text && number && wanted_threads() == 0;
    return new std::vector<std::vector<int>>(
        text      ? parse_cores(text)
        : divided ? cores_by_node(std::clamp(std::atoi(number), 1, CPU_SETSIZE), memory_nodes())
                  : std::vector<std::vector<int>>());
  }();
  return *cores;
}

std::vector<int> parse_devices(const std::string& text, int count) {
  std::vector<int> devices;
  std::istringstream numbers(text);
  for (std::string number; std::getline(numbers, number, ',');) {
    int device = -1;
    char more = 0;
    std::istringstream digits(number);
    if (!(digits >> device) || digits >> more || device < 0 || device >= count) return {};
    if (std::find(devices.begin(), devices.end(), device) != devices.end()) return {};
    devices.push_back(device);
  }
  return devices;
}

int processors(const std::string& groups, const std::string& root) {
  const double cores = std::min<double>(allowed_cores(), std::ceil(group_quota(groups, root)));
  return std::max(static_cast<int>(cores), 1);
}

}  // namespace npu
