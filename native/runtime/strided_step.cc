// Strided copies as steps.
#include "runtime/strided_step.h"

#include "core/strided.h"

namespace npu {
namespace {

class BoundStridedCopy : public BoundStep {
 public:
  explicit BoundStridedCopy(const StridedCopy& copy) : copy_(copy) {}
  void run(RunState&) override { copy_.run(static_cast<const char*>(source), static_cast<char*>(target)); }

  void* source = nullptr;
  void* target = nullptr;

 private:
  const StridedCopy& copy_;
};

class StridedCopyStep : public Step {
 public:
  StridedCopyStep(StridedCopy copy, const Location& source, const Location& target)
      : copy_(std::move(copy)), source_(source), target_(target) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundStridedCopy>(copy_);
    binder.address(&bound->source, source_);
    binder.address(&bound->target, target_);
    return bound;
  }

 private:
  StridedCopy copy_;
  Location source_, target_;
};

}  // namespace

std::unique_ptr<Step> make_strided_copy(const View& from, const View& to, const Location& source,
                                        const Location& target) {
  return std::make_unique<StridedCopyStep>(StridedCopy(from, to), source, target);
}

}  // namespace npu
