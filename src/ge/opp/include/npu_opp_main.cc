// The entry points of a library of custom AI CPU kernels; compiled into every such library.
#include "cpu_kernel.h"

#define NPU_OPP_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

void Tell(NpuOppCall* call, const std::string& text) {
  const std::size_t size = std::min<std::size_t>(text.size(), call->message_size);
  std::memcpy(call->message, text.data(), size);
  call->message[size] = 0;
}

uint32_t Run(const aicpu::KernelEntry& entry, NpuOppCall* call) {
  aicpu::CpuKernelContext context(*call, entry.type.c_str());
  const uint32_t status = entry.make()->Compute(context);
  if (status != aicpu::KERNEL_STATUS_OK) {
    Tell(call, aicpu::LastMessage());
    return status;
  }
  for (uint32_t i = 0; i < context.GetOutputsSize(); ++i) {
    const auto shape = context.Output(i)->GetTensorShape();
    const std::vector<int64_t> dims = shape->GetDimSizes();
    if (shape->Changed()) call->set_shape(call->runtime, i, dims.data(), shape->GetDims());
  }
  return status;
}

}  // namespace

NPU_OPP_EXPORT uint32_t npu_opp_abi_version() { return NPU_OPP_ABI_VERSION; }

NPU_OPP_EXPORT uint64_t npu_opp_kernel_count() { return aicpu::KernelEntries().size(); }

NPU_OPP_EXPORT const char* npu_opp_kernel_name(uint64_t kernel) {
  return aicpu::KernelEntries()[kernel].type.c_str();
}

NPU_OPP_EXPORT uint32_t npu_opp_kernel_run(uint64_t kernel, NpuOppCall* call) {
  aicpu::LastMessage().clear();
  try {
    return Run(aicpu::KernelEntries()[kernel], call);
  } catch (const std::exception& error) {
    Tell(call, std::string("it threw ") + error.what());
  } catch (...) {
    Tell(call, "it threw something that is no exception");
  }
  return aicpu::KERNEL_STATUS_INNER_ERROR;
}
