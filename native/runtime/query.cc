// Placement queries: a task is lowered against a host that builds nothing.
#include <algorithm>

#include "core/errors.h"
#include "core/parallel.h"
#include "runtime/lowering.h"

namespace npu {
namespace {

class QueryHost : public LoweringHost {
 public:
  explicit QueryHost(std::vector<std::int64_t> constants) : constants_(std::move(constants)) {}

  bool building() const override { return false; }
  bool is_constant(int buffer) const override {
    return std::find(constants_.begin(), constants_.end(), buffer) != constants_.end();
  }
  Location locate(const View&) override { return {}; }
  Location scratch(std::size_t) override { return {}; }
  Location packed(const View&, const dnnl::memory::desc&, const dnnl::memory::desc&) override { return {}; }
  Location prepared(const View&, std::size_t, Prepare) override { return {}; }
  Location literal(const void*, std::size_t) override { return {}; }
  int output_of(const View&) const override { return -1; }
  int block_count() const override { return 0; }
  std::vector<std::pair<int, Dims>> stored_outputs(int) const override { return {}; }
  void emit(std::unique_ptr<Step>) override {}

 private:
  std::vector<std::int64_t> constants_;
};

}  // namespace

std::string query_task(TaskDef task) {
  std::vector<std::int64_t> constants;
  for (std::size_t i = 0; i < task.inputs.size(); ++i) {
    task.inputs[i].buffer = static_cast<int>(i);
    if (i > 0) constants.push_back(static_cast<std::int64_t>(i));
  }
  for (View& view : task.outputs) view.buffer = -1;
  constants = task.attrs.integers("constants", std::move(constants));
  QueryHost host(std::move(constants));
  TaskInfo info;
  std::size_t scratch = 0;
  try {
    lower_task(task, host, info, scratch);
  } catch (const Unsupported&) {
    return {};
  }
  return info.impl;
}

}  // namespace npu
