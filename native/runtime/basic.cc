// Task kinds "kernel" (generated code) and "copy".
#include <cstring>

#include "core/object.h"
#include "core/parallel.h"
#include "runtime/lowering.h"
#include "runtime/strided_step.h"

namespace npu {
namespace {

class BoundKernel : public BoundStep {
 public:
  BoundKernel(KernelFn entry, std::size_t args, std::int64_t total, std::int64_t grain)
      : entry_(entry), args_(args), total_(total), grain_(grain) {}

  void run(RunState&) override {
    if (total_ <= grain_) {
      entry_(args_.data(), 0, total_);
      return;
    }
    parallel_for(total_, grain_, [this](std::int64_t lo, std::int64_t hi) { entry_(args_.data(), lo, hi); });
  }

  void** arg(std::size_t i) { return &args_[i]; }

 private:
  KernelFn entry_;
  std::vector<void*> args_;
  std::int64_t total_;
  std::int64_t grain_;
};

class KernelStep : public Step {
 public:
  KernelStep(std::shared_ptr<KernelObject> object, std::vector<Location> args, std::int64_t total,
             std::int64_t grain)
      : object_(std::move(object)), args_(std::move(args)), total_(total), grain_(grain) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundKernel>(object_->entry(), args_.size(), total_, grain_);
    for (std::size_t i = 0; i < args_.size(); ++i) binder.address(bound->arg(i), args_[i]);
    return bound;
  }

 private:
  std::shared_ptr<KernelObject> object_;
  std::vector<Location> args_;
  std::int64_t total_;
  std::int64_t grain_;
};

constexpr double kByteCycles = 0.25;

class BoundCopy : public BoundStep {
 public:
  explicit BoundCopy(std::int64_t bytes) : bytes_(bytes) {}

  void run(RunState&) override {
    if (source == target) return;
    parallel_for(bytes_, grain(kByteCycles), [this](std::int64_t lo, std::int64_t hi) {
      std::memmove(static_cast<char*>(target) + lo, static_cast<const char*>(source) + lo,
                   static_cast<std::size_t>(hi - lo));
    });
  }

  void* source = nullptr;
  void* target = nullptr;

 private:
  std::int64_t bytes_;
};

class CopyStep : public Step {
 public:
  CopyStep(Location source, Location target, std::int64_t bytes)
      : source_(source), target_(target), bytes_(bytes) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundCopy>(bytes_);
    binder.address(&bound->source, source_);
    binder.address(&bound->target, target_);
    return bound;
  }

 private:
  Location source_, target_;
  std::int64_t bytes_;
};

}  // namespace

void lower_kernel(Lowering& low) {
  const std::shared_ptr<KernelObject> object = low.attrs().kernel("kernel");
  const std::int64_t total = low.attrs().integer("total");
  const std::int64_t grain = low.attrs().integer("grain", total);
  if (total < 0) low.reject("total must not be negative");
  std::vector<Location> args;
  for (const View& view : low.task().inputs) args.push_back(low.at(view));
  for (const View& view : low.task().outputs) args.push_back(low.at(view));
  low.describe("generated:" + object->symbol(), "", low.attrs().real("flops", 0));
  if (total == 0) return;
  low.emit(std::make_unique<KernelStep>(object, std::move(args), total, std::max<std::int64_t>(grain, 1)));
}

void lower_copy(Lowering& low) {
  const View& from = low.input(0);
  const View& to = low.output(0);
  if (from.bytes() != to.bytes()) low.reject("source and output differ in size");
  if (!from.contiguous() || !to.contiguous()) low.reject("views must be contiguous");
  low.describe("memcpy", "", 0);
  if (from.bytes() == 0) return;
  low.emit(std::make_unique<CopyStep>(low.at(from), low.at(to), static_cast<std::int64_t>(from.bytes())));
}

#if !NPU_ONEDNN
void lower_reorder(Lowering& low) {
  const View& from = low.input(0);
  const View& to = low.output(0);
  if (from.dims != to.dims) low.reject("source and output must have the same dims");
  low.describe("strided_copy", "", 0);
  low.emit(make_strided_copy(from, to, low.at(from), low.at(to)));
}
#endif

}  // namespace npu
