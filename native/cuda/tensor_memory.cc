#include "cuda/tensor_memory.h"

#include <algorithm>
#include <cstring>

#include "core/errors.h"

namespace npu::cuda {
namespace {

constexpr std::size_t kSlot = std::size_t{4} << 20;
constexpr std::size_t kStep = 512;

std::size_t rounded(std::size_t bytes) { return std::max(kStep, (bytes + kStep - 1) / kStep * kStep); }

thread_local std::string failure;

// Who has which memory: tensors are freed when the driver may be another one (in tests), or none any more.
class Owners {
 public:
  static Owners& get() {
    static auto* owners = new Owners();
    return *owners;
  }

  void add(Address address, TensorMemory* owner) {
    const std::scoped_lock lock(mutex_);
    owners_[address] = owner;
  }

  TensorMemory& of(Address address) {
    const std::scoped_lock lock(mutex_);
    return *owners_.at(address);
  }

 private:
  std::mutex mutex_;
  std::map<Address, TensorMemory*> owners_;
};

// A result instead of an exception, which must not cross from module to module.
template <typename Function>
int result_of(Function function) {
  try {
    function();
    return GpuCalls::kDone;
  } catch (const OutOfDeviceMemory& error) {
    failure = error.what();
    return GpuCalls::kNoMemory;
  } catch (const std::exception& error) {
    failure = error.what();
    return GpuCalls::kFailed;
  }
}

}  // namespace

TensorMemory& TensorMemory::of(int device) {
  static std::mutex mutex;
  static auto* known = new std::map<Device*, TensorMemory*>();  // outlives what the frameworks free at exit
  Device& found = Device::get(device);
  const std::scoped_lock lock(mutex);
  TensorMemory*& memory = (*known)[&found];
  if (!memory) memory = new TensorMemory(found);
  return *memory;
}

Address TensorMemory::allocate(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  {
    const std::scoped_lock lock(mutex_);
    const auto found = free_.find(size);
    if (found != free_.end()) {
      const Address address = found->second;
      free_.erase(found);
      return address;
    }
  }
  try {
    return device_.allocate(size, "a tensor");
  } catch (const OutOfDeviceMemory&) {
    give_back();
    return device_.allocate(size, "a tensor");
  }
}

void TensorMemory::release(Address address, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  free_.emplace(rounded(bytes), address);
}

void TensorMemory::give_back() {
  stream_.synchronize();
  const std::scoped_lock lock(mutex_);
  for (const auto& [size, address] : free_) device_.release(address, size);
  free_.clear();
  device_.trim();
}

void TensorMemory::upload(Address to, const void* from, std::size_t bytes) {
  const std::scoped_lock lock(staging_);
  const char* begin = static_cast<const char*>(from);
  for (std::size_t done = 0; done < bytes; done += kSlot) {
    Slot& slot = slots_[next_++ % slots_.size()];
    if (slot.memory) {
      slot.read->synchronize();
    } else {
      slot.memory = std::make_unique<PinnedMemory>(device_, kSlot);
      slot.read = std::make_unique<Event>(device_);
    }
    const std::size_t part = std::min(kSlot, bytes - done);
    std::memcpy(slot.memory->data(), begin + done, part);
    stream_.upload(to + done, slot.memory->data(), part);
    slot.read->record(stream_);
  }
}

void TensorMemory::download(void* to, Address from, std::size_t bytes) const {
  stream_.download(to, from, bytes);
  stream_.synchronize();
}

const GpuCalls& gpu_calls() {
  static const GpuCalls calls = {
      [](int device, std::size_t bytes, std::uint64_t* address, std::size_t* available) {
        return result_of([&] {
          try {
            TensorMemory& memory = TensorMemory::of(device);
            *address = memory.allocate(bytes);
            Owners::get().add(*address, &memory);
          } catch (const OutOfDeviceMemory& error) {
            *available = error.available();
            throw;
          }
        });
      },
      [](int, std::uint64_t address, std::size_t bytes) {
        Owners::get().of(address).release(address, bytes);
      },
      [](int, std::uint64_t to, const void* from, std::size_t bytes) {
        return result_of([&] { Owners::get().of(to).upload(to, from, bytes); });
      },
      [](int, void* to, std::uint64_t from, std::size_t bytes) {
        return result_of([&] { Owners::get().of(from).download(to, from, bytes); });
      },
      [] { return failure.c_str(); },
  };
  return calls;
}

}  // namespace npu::cuda
