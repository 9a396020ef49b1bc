#include "cuda/driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

namespace npu::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

void find(void* library, const char* name, void* slot) {
  void* symbol = dlsym(library, name);
  if (symbol == nullptr)
    throw Unavailable(std::string("the CUDA driver has no ") + name + "; install a newer one");
  std::memcpy(slot, &symbol, sizeof symbol);
}

Driver load() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw Unavailable(std::string("no CUDA driver: ") + dlerror() + "; install NVIDIA's driver to use a GPU");
  }
  Driver d{};
  const struct {
    const char* name;
    void* slot;
  } table[] = {
      {"cuInit", &d.init},
      {"cuDriverGetVersion", &d.driver_version},
      {"cuGetErrorName", &d.error_name},
      {"cuGetErrorString", &d.error_text},
      {"cuDeviceGetCount", &d.device_count},
      {"cuDeviceGet", &d.device_get},
      {"cuDeviceGetName", &d.device_name},
      {"cuDeviceGetAttribute", &d.device_attribute},
      {"cuDeviceTotalMem_v2", &d.device_memory},
      {"cuDevicePrimaryCtxRetain", &d.context_retain},
      {"cuCtxSetCurrent", &d.context_set},
      {"cuCtxSynchronize", &d.context_synchronize},
      {"cuMemGetInfo_v2", &d.memory_info},
      {"cuMemAlloc_v2", &d.allocate},
      {"cuMemFree_v2", &d.release},
      {"cuMemAllocHost_v2", &d.allocate_host},
      {"cuMemFreeHost", &d.release_host},
      {"cuMemcpyHtoDAsync_v2", &d.copy_to_device},
      {"cuMemcpyDtoHAsync_v2", &d.copy_to_host},
      {"cuMemcpyDtoDAsync_v2", &d.copy_on_device},
      {"cuMemcpyAsync", &d.copy_anywhere},
      {"cuMemsetD8Async", &d.fill},
      {"cuStreamCreate", &d.stream_create},
      {"cuStreamDestroy_v2", &d.stream_destroy},
      {"cuStreamSynchronize", &d.stream_synchronize},
      {"cuStreamQuery", &d.stream_query},
      {"cuStreamWaitEvent", &d.stream_wait},
      {"cuStreamBeginCapture_v2", &d.capture_begin},
      {"cuStreamEndCapture", &d.capture_end},
      {"cuEventCreate", &d.event_create},
      {"cuEventDestroy_v2", &d.event_destroy},
      {"cuEventRecord", &d.event_record},
      {"cuEventSynchronize", &d.event_synchronize},
      {"cuEventQuery", &d.event_query},
      {"cuEventElapsedTime", &d.event_elapsed},
      {"cuModuleLoadDataEx", &d.module_load},
      {"cuModuleUnload", &d.module_unload},
      {"cuModuleGetFunction", &d.module_function},
      {"cuFuncSetAttribute", &d.function_attribute},
      {"cuLaunchKernel", &d.launch},
      {"cuGraphInstantiateWithFlags", &d.graph_instantiate},
      {"cuGraphDestroy", &d.graph_destroy},
      {"cuGraphGetNodes", &d.graph_nodes},
      {"cuGraphLaunch", &d.graph_launch},
      {"cuGraphExecDestroy", &d.graph_exec_destroy},
  };
  for (const auto& entry : table) find(library, entry.name, entry.slot);
  return d;
}

std::string describe(const Driver& d, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  d.error_name(result, &name);
  d.error_text(result, &text);
  return std::string(name ? name : "an unknown error") + (text ? std::string(" (") + text + ")" : "");
}

// The table, ready for use.
const Driver& initialised(const Driver& d) {
  const Result result = d.init(0);
  if (result == kNoDevice) throw Unavailable("the CUDA driver finds no GPU in this machine");
  if (result != 0) throw Unavailable("the CUDA driver does not start: " + describe(d, result));
  return d;
}

}  // namespace

bool is_simulated() {
  const char* wanted = std::getenv("NPU_CUDA_DRIVER");
  return wanted != nullptr && std::strcmp(wanted, "simulated") == 0;
}

const Driver& driver() {
  if (is_simulated()) return simulated_driver();
  static const Driver loaded = load();
  static const Driver& ready = initialised(loaded);
  return ready;
}

void check(Result result, const char* what) {
  if (result != 0) throw CudaError(std::string(what) + " failed: " + describe(driver(), result));
}

}  // namespace npu::cuda
