// Builds programs from the plans of a file and runs them.
#include "model/model.h"

#include <cstring>
#include <utility>

#include "core/errors.h"
#include "core/object.h"
#include "core/processor.h"

namespace npu {
namespace {

void check_arrays(const std::string& model, const char* side, const std::vector<Port>& ports,
                  const std::vector<Array>& arrays) {
  if (arrays.size() != ports.size()) {
    throw ModelError(10020, "model " + model + " has " + std::to_string(ports.size()) + " " + side +
                                "s, got " + std::to_string(arrays.size()));
  }
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const std::size_t needed = ports[i].bytes();
    if (arrays[i].bytes >= needed && (arrays[i].data || !needed)) continue;
    throw ModelError(10020, std::string(side) + " '" + ports[i].name + "' needs " + std::to_string(needed) +
                                " bytes, its memory has " +
                                std::to_string(arrays[i].data ? arrays[i].bytes : 0));
  }
}

std::string joined(const Dims& values) {
  std::string text;
  for (const std::int64_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

}  // namespace

std::shared_ptr<LoadedModel> LoadedModel::from_file(const std::string& path, bool trust, int device) {
  return std::make_shared<LoadedModel>(Package::read(FileImage::read(path), path, trust), path, device);
}

std::shared_ptr<LoadedModel> LoadedModel::from_memory(Bytes data, bool trust, int device) {
  const std::string name = "the model in memory";
  return std::make_shared<LoadedModel>(Package::read(FileImage::copy(data), name, trust), name, device);
}

LoadedModel::LoadedModel(Package package, std::string source, int device)
    : package_(std::move(package)), source_(std::move(source)), device_(device) {
  limit_instructions();
  Device::get(device);  // throws if there is none
  programs_.resize(package_.plans.size());
  if (!package_.gears) program(0);
}

Program& LoadedModel::program(std::size_t gear) {
  const std::lock_guard lock(mutex_);
  if (!programs_[gear]) {
    try {
      programs_[gear] = build(package_.plans[gear]);
    } catch (const InvalidArgument& error) {
      throw ModelError(11008, "the runtime refuses " + source_ + ": " + error.what(),
                       "compile the original model with atc");
    } catch (const Unsupported& error) {
      throw ModelError(11008, "the runtime refuses " + source_ + ": " + error.what(),
                       "compile the original model with atc for this processor");
    } catch (const ObjectError& error) {
      throw ModelError(11007, source_ + " has machine code that cannot be loaded: " + error.what(),
                       "compile the original model with atc");
    }
  }
  return *programs_[gear];
}

std::unique_ptr<Program> LoadedModel::build(const Plan& plan) const {
  auto program = std::make_unique<Program>(plan.name, device_);
  program->set_loops(plan.loops());
  std::vector<int> over(plan.outputs.size(), Buffer::kNoInput);
  for (const auto& [output, input] : plan.donated) over[static_cast<std::size_t>(output)] = input;
  for (const Buffer& buffer : plan.buffers) {
    const auto at = static_cast<std::size_t>(buffer.index);
    switch (buffer.kind) {
      case Buffer::Kind::Constant: {
        const std::shared_ptr<void> owner = std::const_pointer_cast<FileImage>(package_.image);
        program->constant({plan.constants[at].data(), owner, false}, plan.constants[at].size());
        break;
      }
      case Buffer::Kind::Arena:
        program->arena(buffer.offset, buffer.nbytes);
        break;
      case Buffer::Kind::Input:
        program->input(buffer.index, buffer.nbytes);
        break;
      case Buffer::Kind::Output:
        program->output(buffer.index, buffer.nbytes, over[at]);
    }
  }
  for (int i = 1; i < plan.blocks; ++i) program->block();
  std::vector<std::shared_ptr<KernelObject>> kernels;
  for (const int i : plan.kernels) {
    const KernelCode& kernel = package_.kernels[static_cast<std::size_t>(i)];
    kernels.push_back(KernelObject::load(kernel.code, kernel.symbol));
  }
  for (const PlanTask& item : plan.tasks) {
    TaskDef task = item.task;
    if (item.kernel >= 0) task.attrs.set("kernel", kernels[static_cast<std::size_t>(item.kernel)]);
    program->task(std::move(task));
  }
  if (plan.steps > 1) {
    program->repeat(plan.steps, plan.strides(Buffer::Kind::Input), plan.strides(Buffer::Kind::Output));
  }
  program->finalize(plan.arena_bytes);
  return program;
}

std::size_t LoadedModel::find_gear(const std::vector<Dims>& shapes) const {
  std::string given, known;
  for (std::size_t gear = 0; gear < gear_count(); ++gear) {
    const std::vector<Port>& ports = plan(gear).inputs;
    bool fits = ports.size() == shapes.size();
    for (std::size_t i = 0; fits && i < ports.size(); ++i) fits = ports[i].dims == shapes[i];
    if (fits) return gear;
  }
  for (std::size_t i = 0; i < shapes.size() && i < plan(0).inputs.size(); ++i) {
    given += (i ? ", " : "") + plan(0).inputs[i].name + ":" + joined(shapes[i]);
  }
  for (const Dims& choice : package_.gears ? package_.gears->choices : std::vector<Dims>()) {
    known += (known.empty() ? "" : "; ") + joined(choice);
  }
  throw ModelError(11101, "no gear of the model fits the inputs " + given,
                   known.empty() ? "the model was compiled for one shape"
                                 : "use one of the gears " + known + ", or compile one for these inputs");
}

void LoadedModel::run(std::size_t gear, const std::vector<Array>& inputs, std::vector<Array>& outputs) {
  if (gear >= gear_count()) {
    throw ModelError(11101, "model " + name() + " has " + std::to_string(gear_count()) +
                                " gears, there is no " + std::to_string(gear));
  }
  const Plan& from = plan(gear);
  check_arrays(name(), "input", from.inputs, inputs);
  check_arrays(name(), "output", from.outputs, outputs);
  std::vector<void*> in, out;
  for (const Array& array : inputs) in.push_back(array.data);
  for (const Array& array : outputs) out.push_back(array.data);
  for (const auto& [output, input] : from.donated) {  // the caller's array is unchanged
    void *&source = in[static_cast<std::size_t>(input)], *to = out[static_cast<std::size_t>(output)];
    if (source != to) std::memmove(to, source, from.inputs[static_cast<std::size_t>(input)].bytes());
    source = to;
  }
  Program& loaded = program(gear);
  try {
    const ShapeReport report = loaded.run(in.data(), out.data());
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].dims = from.outputs[i].dims;
    for (const auto& [output, dims] : report) outputs[static_cast<std::size_t>(output)].dims = dims;
  } catch (const TaskError& error) {
    throw failure(from, error);
  }
}

ModelError LoadedModel::failure(const Plan& plan, const TaskError& error) const {
  std::string where = "Node " + error.task();
  for (const PlanTask& item : plan.tasks) {
    if (item.task.name != error.task()) continue;
    const std::string node = item.origin.empty() ? item.task.name : item.origin;
    where = item.operator_name.empty() ? "Node " + node
                                       : "Op type '" + item.operator_name + "' (node " + node + ")";
    break;
  }
  const std::string cause = where + ": " + error.cause();
  if (error.kind() == "index") {
    return {10024, cause, "check where the value comes from, or clip it"};
  }
  if (error.kind() == "division") {
    return {10024, cause, "check where the divisor comes from, or put 1 where it is 0"};
  }
  return {10032, cause};
}

}  // namespace npu
