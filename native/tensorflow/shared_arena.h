// Memory that two parts of a graph share, so that one reads in place what the other computed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/device.h"
#include "tensorflow/c_api.h"

namespace npu::tf {

// An arena that outlives its program: values at known offsets are inputs of the next part, the rest is free
// for it. A scalar tensor stands for it in the graph; the arena lives as long as that tensor.
class SharedArena {
 public:
  // Bytes the reading part needs: the next arena is allocated that large.
  using Need = std::shared_ptr<std::atomic<std::size_t>>;

  // Raises OutOfDeviceMemory naming the requester.
  SharedArena(Device& device, std::size_t bytes, Need need, std::string_view requester);
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  // Makes the tensor that stands for an arena; finds the arena of a tensor's number (null: it is gone).
  static TF_Tensor* publish(std::shared_ptr<SharedArena> arena);
  static std::shared_ptr<SharedArena> find(std::int64_t number);

  char* data() const { return memory_.data(); }
  std::size_t size() const { return memory_.size(); }
  // Makes room for a program that needs more; what is there stays at its place.
  void reserve(std::size_t bytes, std::string_view requester);
  // Of the places in it; a number that Python gave.
  std::int64_t layout() const { return layout_; }
  // Another part has left something in it.
  void pass_on(std::int64_t layout, Need need);

 private:
  Device& device_;
  DeviceMemory memory_;
  Need need_;
  std::int64_t layout_ = 0;
};

}  // namespace npu::tf
