// The runtime's calls into the GPU module (npu_runtime._cuda), which is loaded only if a GPU is used: memory
// of tensors on a GPU. They are ordered by one stream per GPU, on which the programs run too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu {

struct GpuCalls {
  enum Result { kDone, kNoMemory, kFailed };
  static constexpr const char* kName = "npu_runtime.gpu_calls";  // of the capsule

  // `available` is set if there is not enough memory.
  int (*allocate)(int device, std::size_t bytes, std::uint64_t* address, std::size_t* available);
  void (*release)(int device, std::uint64_t address, std::size_t bytes);
  // Has read the host memory when it returns.
  int (*upload)(int device, std::uint64_t to, const void* from, std::size_t bytes);
  // Waits for pending work of the stream.
  int (*download)(int device, void* to, std::uint64_t from, std::size_t bytes);
  // The error message of this thread's last failed call.
  const char* (*message)();
};

}  // namespace npu
