// Memory of variables that are TensorFlow's own, which programs write in place all the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "tensorflow/pool.h"
#include "tensorflow/storage.h"

namespace npu::tf {

// TensorFlow does not tell how many references there are to a variable's value. So it gets the memory through
// a new tensor before each write, with a reference count of its own: when the variable has taken that one,
// nobody else refers to the memory exactly if all tensors before it have been freed.
class LentMemory {
 public:
  // New memory of a device with the contents of `from`; raises OutOfDeviceMemory naming the requester.
  static std::shared_ptr<LentMemory> copy_of(const Storage& from, Device& device, std::string_view requester);
  // The memory at an address that a tensor in use has; null for memory of any other kind.
  static std::shared_ptr<LentMemory> find(const void* data);

  explicit LentMemory(Block block, const Storage& like);
  ~LentMemory();
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  char* data() const { return block_.data(); }
  // Another tensor of the memory, which the caller deletes.
  static TF_Tensor* lend(const std::shared_ptr<LentMemory>& memory);
  // True if all tensors but the last one have been freed.
  bool lent_once() const { return lent_.load(std::memory_order_acquire) == 1; }
  // Odd, and another one for each tensor that was lent: tells contents apart.
  std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  static void free_tensor(void* data, std::size_t bytes, void* owner);

  Block block_;
  int dtype_;
  Shape shape_;
  std::size_t bytes_;
  std::atomic<int> lent_ = 0;
  std::atomic<std::uint64_t> version_ = 1;
};

}  // namespace npu::tf
