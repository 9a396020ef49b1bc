// What an `.om` file holds: a plan for each gear, checked in every reference (ge/model/codec.py writes them).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/loops.h"
#include "core/view.h"
#include "model/container.h"
#include "model/json.h"
#include "runtime/program.h"
#include "runtime/task.h"

namespace npu {

// An input or output of a model as its user sees it.
struct Port {
  std::string name;
  DType dtype = DType::Float32;
  Dims dims;
  std::string format;
  bool dynamic = false;  // the actual shape is known only after the run

  std::size_t bytes() const;
};

// Machine code of a generated kernel.
struct KernelCode {
  std::string symbol;
  Bytes code;  // empty: none that may run here
};

struct PlanTask {
  TaskDef task;
  int kernel = -1;  // of a generated kernel: its place in the plan's list
  std::string origin;
  std::string operator_name;
};

struct Plan {
  std::string name;
  std::vector<Port> inputs, outputs;
  std::vector<Buffer> buffers;
  std::vector<Bytes> constants;
  std::vector<int> kernels;  // in the package
  std::vector<PlanTask> tasks;
  int blocks = 1;
  std::size_t arena_bytes = 0;
  std::vector<std::pair<int, int>> donated;  // (output, input): one memory
  int steps = 1;
  Json report;
  Loops loops() const;  // of its target; the default where the report does not tell

  std::vector<std::size_t> strides(Buffer::Kind kind) const;
};

struct Gears {
  enum class Kind { Batch, ImageSize, Dims };
  Kind kind = Kind::Batch;
  std::vector<std::pair<std::string, Dims>> inputs;  // -1 in the places that vary
  std::vector<Dims> choices;
};

struct Package {
  std::shared_ptr<const FileImage> image;  // what constants and machine code are views of
  std::vector<Plan> plans;
  std::optional<Gears> gears;
  std::vector<KernelCode> kernels;

  // `trust`: machine code of a file that this user did not seal may run.
  static Package read(std::shared_ptr<const FileImage> image, const std::string& name, bool trust);
  const Plan& largest() const;
};

}  // namespace npu
