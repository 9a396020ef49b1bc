// Tasks as declared by the builder of a program.
#pragma once

#include <string>
#include <vector>

#include "core/attrs.h"
#include "core/view.h"

namespace npu {

struct TaskDef {
  std::string kind;
  std::string name;
  std::vector<View> inputs;
  std::vector<View> outputs;
  Attrs attrs;
  int block = 0;
};

// What is known about a lowered task, for profiles.
struct TaskInfo {
  std::string name;
  std::string kind;
  std::string impl;
  std::string layout;
  double flops = 0;
  double bytes = 0;
};

}  // namespace npu
