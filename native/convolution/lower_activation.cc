// Swish after a convolution of oneDNN's, whose own costs several times as much.
#include <algorithm>

#include "convolution/activation.h"
#include "convolution/lower.h"
#include "convolution/post_ops.h"
#include "core/parallel.h"

namespace npu {
namespace {

using namespace convolution;

constexpr std::int64_t kGrain = 8192;  // values worth a thread

struct Plan {
  Epilogue epilogue;
  ActivationFn run = nullptr;
  std::int64_t count = 0;
  std::int64_t size = 0;  // of a value, in bytes
};

class BoundActivation : public BoundStep {
 public:
  explicit BoundActivation(const Plan& plan) : plan_(plan) {}

  void run(RunState&) override {
    parallel_for(plan_.count, kGrain, [&](std::int64_t begin, std::int64_t end) {
      plan_.run(plan_.epilogue, static_cast<char*>(values) + begin * plan_.size, end - begin);
    });
  }

  void* values = nullptr;

 private:
  const Plan& plan_;
};

class ActivationStep : public Step {
 public:
  ActivationStep(const Plan& plan, const Location& values) : plan_(plan), values_(values) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundActivation>(plan_);
    binder.address(&bound->values, values_);
    return bound;
  }

 private:
  Plan plan_;
  Location values_;
};

// The elements lie side by side, in whatever order of the axes.
bool is_dense(const View& view) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < view.dims.size(); ++i) last += (view.dims[i] - 1) * view.strides[i];
  return view.elements() > 0 && last + 1 == view.elements();
}

}  // namespace

void check_late_activation(const Lowering& low) {
  const std::vector<std::string> ops = low.attrs().texts("post_ops");
  Epilogue epilogue;
  const bool swish = !ops.empty() && read_activation(ops.back(), epilogue) &&
                     epilogue.activation == Activation::Swish && is_dense(low.output(0));
  if (!swish) low.reject("swish of a dense result is not its last post-operation");
  if (!activation(low.output(0).dtype)) low.reject("swish in place needs AVX-512 with bfloat16 products");
}

void lower_late_activation(Lowering& low) {
  const View& y = low.output(0);
  Plan plan{{}, activation(y.dtype), y.elements(), static_cast<std::int64_t>(dtype_size(y.dtype))};
  read_activation(low.attrs().texts("post_ops").back(), plan.epilogue);
  low.emit(std::make_unique<ActivationStep>(plan, low.at(y)));
}

}  // namespace npu
