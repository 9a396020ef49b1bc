// The AI CPU kernels that the tests build.
#include <stdexcept>

#include "cpu_kernel.h"
#include "cpu_kernel_utils.h"
#include "cpu_tensor.h"
#include "log.h"
#include "securec.h"
#include "status.h"

namespace {
const char* KEEP_POSITIVE = "KeepPositive";
constexpr char kWeightedSum[] = "WeightedSum";
}  // namespace

namespace aicpu {

class KeepPositiveKernel : public CpuKernel {
 public:
  uint32_t Compute(CpuKernelContext& ctx) override {
    switch (ctx.Input(0)->GetDataType()) {
      case DT_FLOAT:
        return Keep<float>(ctx);
      case DT_INT32:
        return Keep<int32_t>(ctx);
      default:
        return KERNEL_STATUS_PARAM_INVALID;
    }
  }

 private:
  template <class T>
  static uint32_t Keep(CpuKernelContext& ctx) {
    const auto* x = static_cast<const T*>(ctx.Input(0)->GetData());
    auto* y = static_cast<T*>(ctx.Output(0)->GetData());
    int64_t count = 0;
    for (int64_t i = 0; i < ctx.Input(0)->NumElements(); ++i) {
      if (x[i] > 0) y[count++] = x[i];
    }
    ctx.Output(0)->GetTensorShape()->SetDimSizes({count});
    return KERNEL_STATUS_OK;
  }
};
REGISTER_CPU_KERNEL(KEEP_POSITIVE, KeepPositiveKernel);

class CheckedKernel : public CpuKernel {
 public:
  uint32_t Compute(CpuKernelContext& ctx) override {
    const float bound = ctx.GetAttr("bound")->GetFloat();
    const auto* x = ctx.Input(0)->Data<float>();
    for (int64_t i = 0; i < ctx.Input(0)->NumElements(); ++i) {
      if (x[i] >= bound) continue;
      if (ctx.GetAttr("how")->GetString() == "throw") throw std::runtime_error("an element is too small");
      KERNEL_LOG_ERROR("element %ld is %g, below %g", static_cast<long>(i), x[i], bound);
      return KERNEL_STATUS_PARAM_INVALID;
    }
    const auto size = ctx.Input(0)->GetDataSize();
    return memcpy_s(ctx.Output(0)->GetData(), ctx.Output(0)->GetDataSize(), x, size) == EOK
               ? KERNEL_STATUS_OK
               : KERNEL_STATUS_INNER_ERROR;
  }
};
REGISTER_CPU_KERNEL("Checked", CheckedKernel);

class WeightedSumKernel : public CpuKernel {
 public:
  uint32_t Compute(CpuKernelContext& ctx) override {
    const std::vector<float> weights = ctx.GetAttr("weights")->GetListFloat();
    const float sign = ctx.GetAttr("negate")->GetBool() ? -1.0f : 1.0f;
    auto* y = ctx.Output(0)->Data<float>();
    return CpuKernelUtils::ParallelFor(ctx, ctx.Output(0)->NumElements(), 1024,
                                       [&](int64_t begin, int64_t end) {
                                         for (int64_t i = begin; i < end; ++i) {
                                           float sum = 0;
                                           for (uint32_t k = 0; k < ctx.GetInputsSize(); ++k)
                                             sum += weights[k] * ctx.Input(k)->Data<float>()[i];
                                           y[i] = sign * sum;
                                         }
                                       });
  }
};
REGISTER_CPU_KERNEL(kWeightedSum, WeightedSumKernel);

class AffineKernel : public CpuKernel {
 public:
  uint32_t Compute(CpuKernelContext& ctx) override {
    KERNEL_CHECK_FALSE(ctx.Input(0)->GetDataType() == DT_FLOAT, KERNEL_STATUS_PARAM_INVALID,
                       "Affine takes float, got %s", DTypeStr(ctx.Input(0)->GetDataType()).c_str());
    const auto factor = static_cast<float>(ctx.GetAttr("factor")->GetInt());
    const Tensor* bias = ctx.Input(1);
    for (int64_t i = 0; i < ctx.Input(0)->NumElements(); ++i) {
      const float add = bias ? bias->Data<float>()[i % bias->NumElements()] : 0.0f;
      ctx.Output(0)->Data<float>()[i] = ctx.Input(0)->Data<float>()[i] * factor + add;
    }
    return KERNEL_STATUS_OK;
  }
};
REGISTER_CPU_KERNEL("Affine", AffineKernel);

class PutRowKernel : public CpuKernel {
 public:
  uint32_t Compute(CpuKernelContext& ctx) override {
    const int64_t columns = ctx.Input(1)->NumElements();
    float* row = ctx.Input(0)->Data<float>() + ctx.GetAttr("at")->GetInt() * columns;
    for (int64_t i = 0; i < columns; ++i) row[i] = ctx.Input(1)->Data<float>()[i];
    return KERNEL_STATUS_OK;
  }
};
REGISTER_CPU_KERNEL("PutRow", PutRowKernel);

}  // namespace aicpu
