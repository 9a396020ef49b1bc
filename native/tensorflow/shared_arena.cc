// Arenas shared by the parts of a graph, by number.
#include "tensorflow/shared_arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

namespace npu::tf {
namespace {

constexpr std::size_t kLine = 64;  // TensorFlow copies what is not aligned

class Numbers {
 public:
  static Numbers& get() {
    static auto* numbers = new Numbers();
    return *numbers;
  }

  std::int64_t add(std::shared_ptr<SharedArena> arena) {
    const std::lock_guard lock(mutex_);
    known_[++last_] = std::move(arena);
    return last_;
  }

  void drop(std::int64_t number) {
    std::shared_ptr<SharedArena> dropped;  // freed without the lock
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(number);
    if (found == known_.end()) return;
    dropped = std::move(found->second);
    known_.erase(found);
  }

  std::shared_ptr<SharedArena> find(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(number);
    return found == known_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::unordered_map<std::int64_t, std::shared_ptr<SharedArena>> known_;
};

void free_number(void* data, std::size_t, void*) {
  Numbers::get().drop(*static_cast<std::int64_t*>(data));
  std::free(data);
}

}  // namespace

SharedArena::SharedArena(Device& device, std::size_t bytes, Need need, std::string_view requester)
    : device_(device),
      memory_(device.arenas().borrow(std::max({bytes, need->load(), kLine}), nullptr, requester).keep()),
      need_(std::move(need)) {}

SharedArena::~SharedArena() { device_.arenas().accept(std::move(memory_)); }

TF_Tensor* SharedArena::publish(std::shared_ptr<SharedArena> arena) {
  auto* number = static_cast<std::int64_t*>(std::aligned_alloc(kLine, kLine));
  if (!number) throw std::bad_alloc();
  *number = Numbers::get().add(std::move(arena));
  return api.TF_NewTensor(kInt64, nullptr, 0, number, sizeof(*number), &free_number, nullptr);
}

std::shared_ptr<SharedArena> SharedArena::find(std::int64_t number) { return Numbers::get().find(number); }

void SharedArena::reserve(std::size_t bytes, std::string_view requester) {
  if (bytes <= size()) return;
  std::size_t known = need_->load();
  while (known < bytes && !need_->compare_exchange_weak(known, bytes)) {
  }
  DeviceMemory larger = device_.arenas().borrow(bytes, nullptr, requester).keep();
  std::memcpy(larger.data(), data(), size());
  std::swap(memory_, larger);
  device_.arenas().accept(std::move(larger));
}

void SharedArena::pass_on(std::int64_t layout, Need need) {
  layout_ = layout;
  need_ = std::move(need);
}

}  // namespace npu::tf
