// Memory of a framework's tensors on a GPU: allocated, copied and freed in the order of one stream.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "core/gpu_calls.h"
#include "cuda/device.h"

namespace npu::cuda {

class TensorMemory {
 public:
  static TensorMemory& of(int device);

  const Stream& stream() const { return stream_; }
  // What was freed is used again at once: what uses it then comes later on the stream.
  Address allocate(std::size_t bytes);
  void release(Address address, std::size_t bytes);
  // By way of pinned memory, so that the caller does not wait for the stream.
  void upload(Address to, const void* from, std::size_t bytes);
  void download(void* to, Address from, std::size_t bytes) const;

 private:
  explicit TensorMemory(Device& device) : device_(device), stream_(device) {}
  void give_back();

  // Memory that a copy may still be reading.
  struct Slot {
    std::unique_ptr<PinnedMemory> memory;
    std::unique_ptr<Event> read;
  };

  Device& device_;
  Stream stream_;
  std::mutex mutex_;  // of what is free
  std::multimap<std::size_t, Address> free_;
  std::mutex staging_;
  std::array<Slot, 4> slots_;
  std::size_t next_ = 0;
};

// The table for the runtime's other modules.
const GpuCalls& gpu_calls();

}  // namespace npu::cuda
