// Reference-counted memory shared by tensors, found by address.
#include "tensorflow/lent_memory.h"

#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace npu::tf {
namespace {

std::atomic<std::uint64_t> next_version = 1;

// All shared memory by address; never destroyed, since TensorFlow may free tensors at process exit.
struct Known {
  std::mutex mutex;
  std::unordered_map<const void*, std::weak_ptr<LentMemory>> memories;

  static Known& get() {
    static auto* known = new Known();
    return *known;
  }
};

}  // namespace

LentMemory::LentMemory(Block block, const Storage& like)
    : block_(std::move(block)), dtype_(like.dtype()), shape_(like.shape()), bytes_(like.bytes()) {}

LentMemory::~LentMemory() {
  Known& known = Known::get();  // the block is given back afterwards: nobody else can have the address yet
  const std::lock_guard lock(known.mutex);
  known.memories.erase(data());
}

std::shared_ptr<LentMemory> LentMemory::copy_of(const Storage& from, Device& device,
                                                std::string_view requester) {
  auto memory = std::make_shared<LentMemory>(TensorPool::of(device).take(from.bytes(), requester), from);
  std::memcpy(memory->data(), from.data(), from.bytes());
  Known& known = Known::get();
  const std::lock_guard lock(known.mutex);
  known.memories[memory->data()] = memory;
  return memory;
}

std::shared_ptr<LentMemory> LentMemory::find(const void* data) {
  Known& known = Known::get();
  const std::lock_guard lock(known.mutex);
  const auto found = known.memories.find(data);
  return found == known.memories.end() ? nullptr : found->second.lock();
}

TF_Tensor* LentMemory::lend(const std::shared_ptr<LentMemory>& memory) {
  memory->lent_.fetch_add(1, std::memory_order_acq_rel);
  memory->version_.store(next_version.fetch_add(1) << 1 | 1, std::memory_order_release);
  return api.TF_NewTensor(memory->dtype_, memory->shape_.data(), memory->shape_.rank(), memory->data(),
                          memory->bytes_, &free_tensor, new std::shared_ptr<LentMemory>(memory));
}

void LentMemory::free_tensor(void*, std::size_t, void* owner) {
  const std::unique_ptr<std::shared_ptr<LentMemory>> memory(static_cast<std::shared_ptr<LentMemory>*>(owner));
  (*memory)->lent_.fetch_sub(1, std::memory_order_acq_rel);
}

}  // namespace npu::tf
