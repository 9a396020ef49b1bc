// Memory for tensors: blocks that come back are kept for the next tensor of the same size.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "core/device.h"

namespace npu::tf {

class TensorPool;

// One block on its way to a tensor; goes back to its pool unless released.
class Block {
 public:
  Block(TensorPool* pool, char* data, std::size_t bytes) : pool_(pool), data_(data), bytes_(bytes) {}
  ~Block();
  Block(Block&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), data_(other.data_), bytes_(other.bytes_) {}
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  char* data() const { return data_; }
  void* owner() const { return pool_; }
  void release() { pool_ = nullptr; }
  // What TensorFlow calls when the last reference to a tensor's memory is gone.
  static void free_tensor(void* data, std::size_t bytes, void* owner);

 private:
  TensorPool* pool_;
  char* data_;
  std::size_t bytes_;
};

// The pool of one device; lives as long as the process, as TensorFlow may free tensors at its very end.
class TensorPool {
 public:
  static TensorPool& of(Device& device);

  explicit TensorPool(Device& device);
  // Raises OutOfDeviceMemory naming the requester.
  Block take(std::size_t bytes, std::string_view requester);
  void give_back(char* data, std::size_t bytes);
  // Frees the blocks that are kept.
  void trim();

 private:
  struct Impl;
  Impl* impl_;
};

}  // namespace npu::tf
