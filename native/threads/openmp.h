// OpenMP's entry points by name.
#pragma once

#include <string_view>
#include <vector>

namespace npu {

struct EntryPoint {
  std::string_view name;
  void* function;
};

const std::vector<EntryPoint>& openmp_entry_points();

}  // namespace npu
