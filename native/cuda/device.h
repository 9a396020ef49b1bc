// GPUs as devices: contexts, memory with a pool and an account, streams, events, loaded kernels.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/driver.h"

namespace npu::cuda {

struct Usage {
  std::size_t current = 0;  // handed out
  std::size_t peak = 0;
  std::size_t pooled = 0;  // kept for reuse
  std::size_t limit = 0;   // 0: the GPU's memory
  std::size_t free = 0;    // by the driver
  std::size_t total = 0;
};

// One GPU. Its primary context is shared with the libraries and frameworks of the process.
class Device {
 public:
  static int count();
  // Raises InvalidArgument when there is no such device.
  static Device& get(int index);

  int index() const { return index_; }
  // The driver that the device was found by; what was made on the device is destroyed by the same.
  const Driver& driver() const { return driver_; }
  std::string name() const;
  std::string architecture() const;  // "sm_90"
  int attribute(int which) const;
  void use() const;  // makes the context current in this thread
  void synchronize() const;

  // Memory aligned to 256 bytes, from the pool where a released block fits. Raises OutOfDeviceMemory naming
  // `requester`.
  Address allocate(std::size_t bytes, std::string_view requester);
  void release(Address address, std::size_t bytes);
  Usage usage() const;
  void set_limit(std::size_t bytes);
  void trim();

 private:
  Device(const Driver& driver, int index);

  const Driver& driver_;
  int index_;
  Ordinal ordinal_ = 0;
  ContextHandle context_ = nullptr;
  mutable std::mutex mutex_;
  Usage usage_;
  std::multimap<std::size_t, Address> pool_;
};

// Memory of a device; goes back to its pool.
class Memory {
 public:
  Memory(Device& device, std::size_t bytes, std::string_view requester);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Address address() const { return address_; }
  std::size_t size() const { return bytes_; }
  Device& device() const { return device_; }

 private:
  Device& device_;
  std::size_t bytes_;
  Address address_;
};

// Memory of the host that a GPU copies from and to without stopping the caller.
class PinnedMemory {
 public:
  PinnedMemory(Device& device, std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  Device& device_;
  std::size_t bytes_;
  void* data_ = nullptr;
};

class Event;

class Stream {
 public:
  explicit Stream(Device& device);
  // A stream that somebody else owns; null is the context's default stream.
  Stream(Device& device, StreamHandle borrowed);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  StreamHandle handle() const { return handle_; }
  void synchronize() const;
  bool idle() const;
  void wait(const Event& event) const;  // lets what follows wait for it
  void copy(Address to, Address from, std::size_t bytes) const;
  // Return at once where the host's memory is pinned.
  void upload(Address to, const void* from, std::size_t bytes) const;
  void download(void* to, Address from, std::size_t bytes) const;

 private:
  Device& device_;
  StreamHandle handle_ = nullptr;
  bool owned_ = true;
};

class Event {
 public:
  explicit Event(Device& device);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Stream& stream);
  void synchronize() const;
  bool complete() const;
  float milliseconds_since(const Event& begin) const;
  EventHandle handle() const { return handle_; }

 private:
  Device& device_;
  EventHandle handle_ = nullptr;
};

// Loaded machine code: PTX text, a cubin, or the object of a simulated kernel.
class Module {
 public:
  // Raises CudaError with the driver's log for code it refuses.
  Module(Device& device, const std::string& image);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  FunctionHandle function(const std::string& name) const;

 private:
  Device& device_;
  ModuleHandle handle_ = nullptr;
};

// `shared` are the bytes of shared memory that a block gets beyond those its code declares.
void launch(const Stream& stream, FunctionHandle function, unsigned blocks, unsigned threads,
            const std::vector<Address>& arguments, unsigned shared = 0);

// What a stream was given between begin and end, launched as one.
class Graph {
 public:
  static void begin(const Stream& stream);
  explicit Graph(const Stream& stream);  // ends the capture
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(const Stream& stream) const;
  std::size_t nodes() const { return nodes_; }

 private:
  Device& device_;
  GraphExecHandle exec_ = nullptr;
  std::size_t nodes_ = 0;
};

}  // namespace npu::cuda
