// Devices: their memory accounts, thread counts and the arenas that programs share.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "core/condition.h"

namespace npu {

enum class MemoryUse { Constants, Arenas, Buffers };

struct MemoryInfo {
  std::size_t current = 0;
  std::size_t peak = 0;
  std::size_t limit = 0;
  std::size_t constants = 0;
  std::size_t arenas = 0;
  std::size_t buffers = 0;
};

class Device;

// Zeroed memory of a device, charged to its account. Blocks of 2 MiB or more are aligned to 2 MiB and request
// huge pages; smaller blocks are aligned to 64 bytes.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  // Raises OutOfDeviceMemory naming `requester` if the device's limit would be exceeded.
  DeviceMemory(Device& device, MemoryUse use, std::size_t bytes, std::string_view requester);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  char* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  MemoryUse use_ = MemoryUse::Buffers;
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Arenas of one device. A run borrows one for its duration, so that programs which do not run concurrently
// share the same memory.
class ArenaPool {
 public:
  explicit ArenaPool(Device& device) : device_(device) {}

  // A borrowed arena; returns itself (RAII).
  class Lease {
   public:
    Lease() = default;
    Lease(ArenaPool* pool, DeviceMemory memory) : pool_(pool), memory_(std::move(memory)) {}
    Lease(Lease&& other) noexcept : pool_(other.pool_), memory_(std::move(other.memory_)) {
      other.pool_ = nullptr;
    }
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (pool_) pool_->give_back(std::move(memory_));
    }
    char* data() const { return memory_.data(); }
    // Lends the arena beyond the run; no run waits for it until accept() returns it.
    DeviceMemory keep();

   private:
    ArenaPool* pool_ = nullptr;
    DeviceMemory memory_;
  };

  // A program announces its size for its lifetime; idle arenas that no program needs are freed.
  void add_user(std::size_t bytes);
  void remove_user(std::size_t bytes);

  // Prefers the arena at `last`, to which the borrower is already bound. At the limit it waits for a running
  // program to end, and raises OutOfDeviceMemory if none is running.
  Lease borrow(std::size_t bytes, const char* last, std::string_view requester);
  // Takes back a lent arena.
  void accept(DeviceMemory memory);
  void trim();

 private:
  void give_back(DeviceMemory memory);
  void end_run();
  bool take_idle(std::size_t bytes, const char* last, DeviceMemory& found);

  Device& device_;
  std::mutex mutex_;
  Condition returned_;
  std::vector<DeviceMemory> idle_;
  std::multiset<std::size_t> needs_;
  int busy_ = 0;
};

// Requests pages of a memory (NUMA) node, if it has any, on first touch; -1: any node.
void prefer_node(void* data, std::size_t bytes, int node);

class Device {
 public:
  static int count();
  // Raises InvalidArgument if there is no such device.
  static Device& get(int index);
  // The device that this thread has selected for the programs it calls, nullptr if none.
  static Device* selected();
  // -1 for none; returns the previous selection. Raises InvalidArgument if there is no such device.
  static int select(int index);

  explicit Device(int index);

  int index() const { return index_; }
  int threads() const { return threads_; }
  void set_threads(int threads);
  // The memory (NUMA) node of its cores; -1 if they span several, or there is only one.
  int node() const { return node_; }

  MemoryInfo memory() const;
  void set_limit(std::size_t bytes);  // 0 restores the machine's memory size
  void reset_peak();
  ArenaPool& arenas() { return arenas_; }
  // Charges memory that is allocated elsewhere; raises OutOfDeviceMemory naming the requester.
  void charge(MemoryUse use, std::size_t bytes, std::string_view requester);
  void discharge(MemoryUse use, std::size_t bytes);

 private:
  std::size_t& account(MemoryUse use);

  int index_;
  int threads_;
  int node_ = -1;
  mutable std::mutex mutex_;
  MemoryInfo info_;
  ArenaPool arenas_{*this};
};

}  // namespace npu
