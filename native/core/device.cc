// Device accounts, huge-page memory and shared arenas.
#include "core/device.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "core/activity.h"
#include "core/errors.h"
#include "core/parallel.h"
#include "threads/processors.h"
#include "threads/team.h"

namespace npu {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kLine = 64;
constexpr int kMaxDevices = kMostPools;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::size_t block_size(std::size_t bytes) {
  constexpr std::size_t kMost = ~(SIZE_MAX / 2);  // more than any device has; further sizes would wrap around
  if (bytes > kMost) return kMost;
  return round_up(std::max<std::size_t>(bytes, 1), bytes >= kHugePage ? kPage : kLine);
}

char* map_huge(std::size_t bytes) {
  const std::size_t span = bytes + kHugePage;
  void* raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(raw);
  char* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<std::size_t>(raw), kHugePage));
  if (aligned > begin) munmap(begin, static_cast<std::size_t>(aligned - begin));
  char* end = aligned + bytes;
  if (begin + span > end) munmap(end, static_cast<std::size_t>(begin + span - end));
  madvise(aligned, bytes, MADV_HUGEPAGE);
  return aligned;
}

char* allocate(std::size_t bytes, const Device& device) {
  if (bytes >= kHugePage) {
    char* block = map_huge(bytes);
    if (block) prefer_node(block, bytes, device.node());
    return block;
  }
  void* block = std::aligned_alloc(kLine, bytes);
  if (block) std::memset(block, 0, bytes);
  return static_cast<char*>(block);
}

void deallocate(char* data, std::size_t bytes) {
  if (bytes >= kHugePage) {
    munmap(data, bytes);
  } else {
    std::free(data);
  }
}

std::size_t machine_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
}

int machine_count() {
  if (!device_cores().empty()) return std::min(static_cast<int>(device_cores().size()), kMaxDevices);
  const char* text = std::getenv("NPU_DEVICE_COUNT");
  const int count = text ? std::atoi(text) : 1;
  return std::clamp(count, 1, kMaxDevices);
}

// The devices that this process sees by their numbers on the machine: those of ASCEND_RT_VISIBLE_DEVICES,
// else all.
const std::vector<int>& visible_devices() {
  static const auto* visible = [] {
    const char* text = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
    auto* chosen = new std::vector<int>(parse_devices(text ? text : "", machine_count()));
    for (int i = 0, all = chosen->empty() ? machine_count() : 0; i < all; ++i) chosen->push_back(i);
    return chosen;
  }();
  return *visible;
}

// The cores of a device; empty if neither NPU_DEVICE_CORES nor NUMA nodes define them.
std::vector<int> cores_of(int index) {
  const auto number = static_cast<std::size_t>(visible_devices()[static_cast<std::size_t>(index)]);
  return device_cores().empty() ? std::vector<int>() : device_cores()[number];
}

int configured_threads(int index) {
  if (!device_cores().empty()) return static_cast<int>(cores_of(index).size());
  return wanted_threads() > 0 ? omp_get_max_threads() : std::max(1, omp_get_max_threads() / machine_count());
}

}  // namespace

void prefer_node(void* data, std::size_t bytes, int node) {
  if (node < 0 || node >= std::numeric_limits<unsigned long>::digits) return;
  constexpr int kPreferred = 1;  // MPOL_PREFERRED: falls back to another node if this one is full
  const unsigned long mask = 1UL << node;
  // Failure is harmless: pages are then placed on first touch.
  syscall(SYS_mbind, data, bytes, kPreferred, &mask, std::numeric_limits<unsigned long>::digits + 1, 0);
}

DeviceMemory::DeviceMemory(Device& device, MemoryUse use, std::size_t bytes, std::string_view requester)
    : use_(use), bytes_(block_size(bytes)) {
  device.charge(use, bytes_, requester);
  data_ = allocate(bytes_, device);
  if (!data_) {
    device.discharge(use, bytes_);
    throw OutOfDeviceMemory(std::string(requester), bytes_, 0);
  }
  device_ = &device;
}

DeviceMemory::~DeviceMemory() {
  if (!data_) return;
  deallocate(data_, bytes_);
  device_->discharge(use_, bytes_);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(other.device_),
      use_(other.use_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(use_, other.use_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void ArenaPool::add_user(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  needs_.insert(bytes);
}

void ArenaPool::remove_user(std::size_t bytes) {
  std::vector<DeviceMemory> freed;
  const std::lock_guard lock(mutex_);
  needs_.erase(needs_.find(bytes));
  const std::size_t most = needs_.empty() ? 0 : block_size(*needs_.rbegin());
  auto keep = [&](const DeviceMemory& memory) { return memory.size() <= most; };
  auto middle = std::partition(idle_.begin(), idle_.end(), keep);
  std::move(middle, idle_.end(), std::back_inserter(freed));
  idle_.erase(middle, idle_.end());
}

bool ArenaPool::take_idle(std::size_t bytes, const char* last, DeviceMemory& found) {
  const std::size_t need = block_size(bytes);
  const std::size_t most = std::max(4 * need, kHugePage);  // a small program must not occupy a large arena
  auto best = idle_.end();
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    if (it->size() < need) continue;
    if (it->data() == last) {
      best = it;
      break;
    }
    if (it->size() <= most && (best == idle_.end() || it->size() < best->size())) best = it;
  }
  if (best == idle_.end()) return false;
  found = std::move(*best);
  *best = std::move(idle_.back());
  idle_.pop_back();
  return true;
}

ArenaPool::Lease ArenaPool::borrow(std::size_t bytes, const char* last, std::string_view requester) {
  if (bytes == 0) return {};
  std::unique_lock lock(mutex_);
  for (;;) {
    DeviceMemory memory;
    if (take_idle(bytes, last, memory)) {
      ++busy_;
      return {this, std::move(memory)};
    }
    // Free idle arenas that are too small for this program; programs that fit allocate them again.
    const std::size_t need = block_size(bytes);
    std::erase_if(idle_, [&](const DeviceMemory& m) { return m.size() >= kHugePage && m.size() < need; });
    try {
      memory = DeviceMemory(device_, MemoryUse::Arenas, bytes, requester);
      ++busy_;
      return {this, std::move(memory)};
    } catch (const OutOfDeviceMemory&) {
      if (!idle_.empty()) {
        idle_.clear();
      } else if (busy_ > 0) {
        returned_.wait(lock);
      } else {
        throw;
      }
    }
  }
}

DeviceMemory ArenaPool::Lease::keep() {
  if (pool_) std::exchange(pool_, nullptr)->end_run();
  return std::move(memory_);
}

void ArenaPool::end_run() {
  {
    const std::lock_guard lock(mutex_);
    --busy_;
  }
  returned_.notify_one();
}

void ArenaPool::accept(DeviceMemory memory) {
  {
    const std::lock_guard lock(mutex_);
    const std::size_t most = needs_.empty() ? 0 : block_size(*needs_.rbegin());
    if (memory.size() <= most) idle_.push_back(std::move(memory));
  }
  returned_.notify_one();
}

void ArenaPool::give_back(DeviceMemory memory) {
  accept(std::move(memory));
  end_run();
}

void ArenaPool::trim() {
  const std::lock_guard lock(mutex_);
  idle_.clear();
}

namespace {

thread_local int selected_index = -1;

}  // namespace

Device* Device::selected() { return selected_index < 0 ? nullptr : &get(selected_index); }

int Device::select(int index) {
  if (index != -1) get(index);
  return std::exchange(selected_index, index);
}

int Device::count() { return static_cast<int>(visible_devices().size()); }

Device& Device::get(int index) {
  if (index < 0 || index >= count()) {
    throw InvalidArgument("device " + std::to_string(index) + " does not exist: there are " +
                          std::to_string(count()) + " (NPU_DEVICE_COUNT)");
  }
  // Never destroyed: programs may outlive static destruction in an interpreter that is shutting down.
  static auto* devices = [] {
    auto* made = new std::vector<std::unique_ptr<Device>>;
    for (int i = 0; i < count(); ++i) made->push_back(std::make_unique<Device>(i));
    return made;
  }();
  return *(*devices)[static_cast<std::size_t>(index)];
}

Device::Device(int index) : index_(index), threads_(configured_threads(index)) {
  if (!device_cores().empty()) {
    set_pool_cores(index, cores_of(index));
    node_ = node_of(cores_of(index), memory_nodes());
  }
  info_.limit = machine_memory();
}

void Device::set_threads(int threads) {
  if (threads < 1 || threads > 1024) {
    throw InvalidArgument("number of threads must be 1 to 1024, got " + std::to_string(threads));
  }
  threads_ = threads;
}

MemoryInfo Device::memory() const {
  const std::lock_guard lock(mutex_);
  return info_;
}

void Device::set_limit(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  info_.limit = bytes ? bytes : machine_memory();
}

void Device::reset_peak() {
  const std::lock_guard lock(mutex_);
  info_.peak = info_.current;
}

std::size_t& Device::account(MemoryUse use) {
  switch (use) {
    case MemoryUse::Constants:
      return info_.constants;
    case MemoryUse::Arenas:
      return info_.arenas;
    case MemoryUse::Buffers:
      break;
  }
  return info_.buffers;
}

void Device::charge(MemoryUse use, std::size_t bytes, std::string_view requester) {
  const std::lock_guard lock(mutex_);
  const std::size_t available = info_.limit > info_.current ? info_.limit - info_.current : 0;
  if (bytes > available) throw OutOfDeviceMemory(std::string(requester), bytes, available);
  info_.current += bytes;
  info_.peak = std::max(info_.peak, info_.current);
  account(use) += bytes;
  Activity::set_memory(index_, info_.current, info_.peak, info_.limit);
}

void Device::discharge(MemoryUse use, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  info_.current -= bytes;
  account(use) -= bytes;
  Activity::set_memory(index_, info_.current, info_.peak, info_.limit);
}

}  // namespace npu
