// Swish after a oneDNN convolution; oneDNN's own costs several times as much.
#include <algorithm>

#include "convolution/activation.h"
#include "convolution/lower.h"
#include "convolution/post_ops.h"
#include "core/parallel.h"
#include "runtime/kernel_step.h"

namespace npu {
namespace {

using namespace convolution;

constexpr double kCycles = 7;  // of a value

struct Params {
  Epilogue epilogue;
  ActivationFn run = nullptr;
  std::int64_t count = 0;
  std::int64_t size = 0;  // of a value, in bytes
};

class BoundActivation : public BoundStep {
 public:
  explicit BoundActivation(const Params& params) : params_(params) {}

  void run(RunState&) override {
    parallel_for(params_.count, grain(kCycles), [&](std::int64_t begin, std::int64_t end) {
      params_.run(params_.epilogue, static_cast<char*>(values) + begin * params_.size, end - begin);
    });
  }

  void* values = nullptr;

 private:
  const Params& params_;
};

using ActivationStep = KernelStep<BoundActivation, Params>;

// True if the elements are contiguous in some order of the axes.
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
  if (!activation(low.output(0).dtype))
    low.reject("swish in place needs AVX2, for bfloat16 its products of AVX-512");
}

void lower_late_activation(Lowering& low) {
  const View& y = low.output(0);
  Params params{{}, activation(y.dtype), y.elements(), static_cast<std::int64_t>(dtype_size(y.dtype))};
  read_activation(low.attrs().texts("post_ops").back(), params.epilogue);
  low.emit(std::make_unique<ActivationStep>(params,
                                            ActivationStep::Places{{&BoundActivation::values, low.at(y)}}));
}

}  // namespace npu
