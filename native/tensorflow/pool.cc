// Pool of tensor memory, by size class.
#include "tensorflow/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/errors.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

namespace npu::tf {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMostKept = std::size_t{512} << 20;

// Sizes are rounded so that eight classes lie between a power of two and the next: at most an eighth is
// wasted.
std::size_t class_size(std::size_t bytes) {
  if (bytes <= 8 * kLine) return std::max(kLine, (bytes + kLine - 1) / kLine * kLine);
  const std::size_t step = std::bit_floor(bytes - 1) / 8;
  return (bytes + step - 1) / step * step;
}

char* allocate(std::size_t bytes, int node) {
  const bool huge = bytes >= kHugePage;
  const std::size_t unit = huge ? kHugePage : kLine;
  const std::size_t rounded = huge ? (bytes + 4095) / 4096 * 4096 : bytes;
  void* block = nullptr;
  if (posix_memalign(&block, unit, rounded) != 0) return nullptr;
  if (huge) {
    madvise(block, rounded, MADV_HUGEPAGE);
    prefer_node(block, rounded, node);
  }
  return static_cast<char*>(block);
}

}  // namespace

struct TensorPool::Impl {
  Device& device;
  std::mutex mutex;
  std::unordered_map<std::size_t, std::vector<char*>> free;
  std::size_t kept = 0;

  char* take_kept(std::size_t size) {
    const std::lock_guard lock(mutex);
    const auto found = free.find(size);
    if (found == free.end() || found->second.empty()) return nullptr;
    char* block = found->second.back();
    found->second.pop_back();
    kept -= size;
    return block;
  }
};

TensorPool::TensorPool(Device& device) : impl_(new Impl{device, {}, {}, 0}) {}

TensorPool& TensorPool::of(Device& device) {
  static std::mutex mutex;
  static auto* pools = new std::deque<std::unique_ptr<TensorPool>>();  // never destroyed, see the header
  const auto index = static_cast<std::size_t>(device.index());
  const std::lock_guard lock(mutex);
  while (pools->size() <= index) {
    pools->push_back(std::make_unique<TensorPool>(Device::get(static_cast<int>(pools->size()))));
  }
  return *(*pools)[index];
}

Block TensorPool::take(std::size_t bytes, std::string_view requester) {
  const std::size_t size = class_size(bytes);
  impl_->device.charge(MemoryUse::Buffers, size, requester);
  char* block = impl_->take_kept(size);
  if (!block) block = allocate(size, impl_->device.node());
  if (!block) {
    impl_->device.discharge(MemoryUse::Buffers, size);
    throw OutOfDeviceMemory(std::string(requester), bytes, 0);
  }
  // Poison the rest of a block, and freed blocks, for sanitizers.
  ASAN_POISON_MEMORY_REGION(block, size);
  ASAN_UNPOISON_MEMORY_REGION(block, bytes);
  return {this, block, bytes};
}

void TensorPool::give_back(char* data, std::size_t bytes) {
  const std::size_t size = class_size(bytes);
  impl_->device.discharge(MemoryUse::Buffers, size);
  ASAN_POISON_MEMORY_REGION(data, size);
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->kept + size <= kMostKept) {
      impl_->free[size].push_back(data);
      impl_->kept += size;
      return;
    }
  }
  std::free(data);
}

void TensorPool::trim() {
  std::unordered_map<std::size_t, std::vector<char*>> blocks;
  {
    const std::lock_guard lock(impl_->mutex);
    blocks.swap(impl_->free);
    impl_->kept = 0;
  }
  for (auto& [size, list] : blocks) std::for_each(list.begin(), list.end(), std::free);
}

Block::~Block() {
  if (pool_) pool_->give_back(data_, bytes_);
}

void Block::free_tensor(void* data, std::size_t bytes, void* owner) {
  static_cast<TensorPool*>(owner)->give_back(static_cast<char*>(data), bytes);
}

}  // namespace npu::tf
