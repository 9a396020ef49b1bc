// What one part of a graph leaves to another in the device's memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/device.h"
#include "tensorflow/c_api.h"

namespace npu::tf {

// An arena that stays when its program has ended: values at known places in it are the next part's inputs,
// the rest is free for it. In the graph it is a tensor of one number, and lives as long as that tensor.
class Handover {
 public:
  // Bytes that the readers of a part's handovers need: the next one is made that large.
  using Need = std::shared_ptr<std::atomic<std::size_t>>;

  // Raises OutOfDeviceMemory naming the requester.
  Handover(Device& device, std::size_t bytes, Need need, std::string_view requester);
  ~Handover();
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  // A tensor that stands for it, and the one that a tensor's number stands for (null: none does any more).
  static TF_Tensor* publish(std::shared_ptr<Handover> handover);
  static std::shared_ptr<Handover> find(std::int64_t number);

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
