// Task kind "aicpu": a C++ kernel found by name.
#include <algorithm>
#include <atomic>
#include <memory>
#include <random>

#include "aicpu/kernel.h"
#include "core/errors.h"
#include "runtime/lowering.h"

namespace npu {
namespace {

// Destination of each output's actual shape.
struct ShapeTargets {
  std::vector<int> program_outputs;  // -1: nowhere
  std::vector<Location> tensors;     // int64 vectors, if requested
};

class BoundAicpu : public BoundStep {
 public:
  BoundAicpu(aicpu::KernelFn kernel, aicpu::Call call, const ShapeTargets& targets, const std::string& task,
             std::atomic<std::uint64_t>& runs)
      : kernel_(kernel),
        call_(std::move(call)),
        targets_(targets),
        shapes_(targets.tensors.size()),
        task_(task),
        runs_(runs) {}

  void run(RunState& state) override {
    call_.run = runs_.fetch_add(1, std::memory_order_relaxed);
    const aicpu::Status status = aicpu::invoke(kernel_, call_);
    if (!status.is_ok()) throw TaskError(task_, status.message(), status.kind());
    for (std::size_t i = 0; i < call_.outputs.size(); ++i) {
      const Dims& dims = call_.reported[i] ? call_.actual[i] : call_.outputs[i].dims;
      if (call_.reported[i] && targets_.program_outputs[i] >= 0)
        state.report(targets_.program_outputs[i], dims);
      if (i < shapes_.size()) std::copy(dims.begin(), dims.end(), static_cast<std::int64_t*>(shapes_[i]));
    }
  }

  void bind(Binder& binder, const std::vector<Location>& inputs, const std::vector<Location>& outputs) {
    for (std::size_t i = 0; i < inputs.size(); ++i) binder.address(&call_.inputs[i].data, inputs[i]);
    for (std::size_t i = 0; i < outputs.size(); ++i) binder.address(&call_.outputs[i].data, outputs[i]);
    for (std::size_t i = 0; i < shapes_.size(); ++i) binder.address(&shapes_[i], targets_.tensors[i]);
  }

 private:
  aicpu::KernelFn kernel_;
  aicpu::Call call_;
  const ShapeTargets& targets_;
  std::vector<void*> shapes_;
  const std::string& task_;
  std::atomic<std::uint64_t>& runs_;
};

class AicpuStep : public Step {
 public:
  AicpuStep(aicpu::KernelFn kernel, aicpu::Call call, std::vector<Location> inputs,
            std::vector<Location> outputs, ShapeTargets targets, std::string task)
      : kernel_(kernel),
        call_(std::move(call)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        targets_(std::move(targets)),
        task_(std::move(task)) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundAicpu>(kernel_, call_, targets_, task_, *runs_);
    bound->bind(binder, inputs_, outputs_);
    return bound;
  }

 private:
  aicpu::KernelFn kernel_;
  aicpu::Call call_;
  std::vector<Location> inputs_, outputs_;
  ShapeTargets targets_;
  std::string task_;
  std::unique_ptr<std::atomic<std::uint64_t>> runs_ = std::make_unique<std::atomic<std::uint64_t>>(0);
};

std::uint64_t fresh_seed() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

aicpu::Tensor operand(const Lowering& low, const View& view) {
  if (!view.contiguous()) low.reject("operands of an AI CPU kernel must be contiguous");
  return {view.dtype, view.dims, nullptr};
}

// With attribute "with_shapes" the second half of the outputs are int64 vectors that receive actual shapes.
std::size_t data_outputs(const Lowering& low) {
  const std::size_t all = low.output_count();
  if (!low.attrs().flag("with_shapes")) return all;
  if (all % 2) low.reject("with_shapes needs a shape vector for each output");
  for (std::size_t i = 0; i < all / 2; ++i) {
    const View& shape = low.output(all / 2 + i);
    if (shape.dtype != DType::Int64 ||
        shape.elements() != static_cast<std::int64_t>(low.output(i).dims.size())) {
      low.reject("a shape vector must be int64 with one number for each dimension");
    }
  }
  return all / 2;
}

ShapeTargets shape_targets(Lowering& low, std::size_t outputs) {
  ShapeTargets targets;
  const Dims named = low.attrs().integers("shape_to", {});
  for (std::size_t i = 0; i < outputs; ++i) {
    const int own = low.output_of(low.output(i));
    targets.program_outputs.push_back(i < named.size() && named[i] >= 0 ? static_cast<int>(named[i]) : own);
  }
  for (std::size_t i = outputs; i < low.output_count(); ++i) targets.tensors.push_back(low.at(low.output(i)));
  return targets;
}

}  // namespace

void lower_aicpu(Lowering& low) {
  const std::string op = low.attrs().text("op");
  std::vector<aicpu::Tensor> inputs, outputs;
  std::vector<Location> sources, targets;
  for (const View& view : low.task().inputs) {
    inputs.push_back(operand(low, view));
    sources.push_back(low.at(view));
  }
  const std::size_t count = data_outputs(low);
  for (std::size_t i = 0; i < count; ++i) {
    outputs.push_back(operand(low, low.output(i)));
    targets.push_back(low.at(low.output(i)));
  }
  low.describe("aicpu:" + op, "", low.attrs().real("flops", 0));
  aicpu::Call call(std::move(inputs), std::move(outputs), low.attrs());
  call.own_seed = fresh_seed();
  const aicpu::KernelFn kernel = aicpu::find_kernel_for(op, call);
  if (!kernel) low.reject("there is no AI CPU kernel '" + op + "'");
  low.emit(std::make_unique<AicpuStep>(kernel, std::move(call), std::move(sources), std::move(targets),
                                       shape_targets(low, count), low.task().name));
}

}  // namespace npu
