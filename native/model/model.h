// A model from an `.om` file, loaded without Python: called by the C interfaces.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/errors.h"
#include "model/package.h"
#include "runtime/program.h"

namespace npu {

// Memory of a caller; after a run, the actual shape of an output.
struct Array {
  void* data = nullptr;
  std::size_t bytes = 0;
  Dims dims;
};

// Runs from several threads go side by side. Errors are ModelError, or those of the runtime.
class LoadedModel {
 public:
  static std::shared_ptr<LoadedModel> from_file(const std::string& path, bool trust, int device);
  static std::shared_ptr<LoadedModel> from_memory(Bytes data, bool trust, int device);

  LoadedModel(Package package, std::string source, int device);

  const Package& package() const { return package_; }
  const std::string& name() const { return package_.plans[0].name; }
  std::size_t gear_count() const { return package_.plans.size(); }
  const Plan& plan(std::size_t gear) const { return package_.plans[gear]; }
  // The gear for input shapes; E11101 with the gears where there is none.
  std::size_t find_gear(const std::vector<Dims>& shapes) const;

  // Raises E10020 where number or size of the arrays is wrong.
  void run(std::size_t gear, const std::vector<Array>& inputs, std::vector<Array>& outputs);

 private:
  Program& program(std::size_t gear);
  std::unique_ptr<Program> build(const Plan& plan) const;
  ModelError failure(const Plan& plan, const TaskError& error) const;

  Package package_;
  std::string source_;
  int device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Program>> programs_;  // of each gear, once it was used
};

}  // namespace npu
