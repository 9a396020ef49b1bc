// What the runtime asks of the module for GPUs (npu_runtime._cuda), which is loaded only where one is used:
// the memory of tensors on a GPU. All of it is ordered by one stream a GPU, on which the programs run too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu {

struct GpuCalls {
  enum Result { kDone, kNoMemory, kFailed };
  static constexpr const char* kName = "npu_runtime.gpu_calls";  // of the capsule

  // `available` is told where there is no memory.
  int (*allocate)(int device, std::size_t bytes, std::uint64_t* address, std::size_t* available);
  void (*release)(int device, std::uint64_t address, std::size_t bytes);
  // Has read the host's memory when it returns.
  int (*upload)(int device, std::uint64_t to, const void* from, std::size_t bytes);
  // Waits for what the stream has to do before.
  int (*download)(int device, void* to, std::uint64_t from, std::size_t bytes);
  // Why the last call of this thread failed.
  const char* (*message)();
};

}  // namespace npu
