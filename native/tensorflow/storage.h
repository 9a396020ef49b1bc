// What NPU tensors and variables are made of: memory shared with TensorFlow's own tensors.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/gpu_calls.h"
#include "tensorflow/c_api.h"

namespace npu {
class OutOfDeviceMemory;
}

namespace npu::tf {

void set_out_of_memory(TF_Status* status, const OutOfDeviceMemory& error);

// A shape; up to six dimensions without an allocation.
class Shape {
 public:
  Shape() = default;
  explicit Shape(std::span<const std::int64_t> dims) { assign(dims); }
  Shape(const Shape& other) { assign(other.dims()); }
  Shape& operator=(const Shape& other) {
    if (this != &other) assign(other.dims());
    return *this;
  }

  std::int64_t* resize(int rank);
  int rank() const { return rank_; }
  const std::int64_t* data() const { return more_ ? more_.get() : inline_; }
  std::span<const std::int64_t> dims() const { return {data(), static_cast<std::size_t>(rank_)}; }
  std::int64_t elements() const;

 private:
  static constexpr int kInline = 6;
  void assign(std::span<const std::int64_t> dims);

  int rank_ = 0;
  std::int64_t inline_[kInline] = {};
  std::unique_ptr<std::int64_t[]> more_;
};

// The functions of GPUs, once Python has loaded their module.
void set_gpu_calls(const GpuCalls* calls);

// Bytes and copies between the host and GPUs so far.
struct GpuCopies {
  std::atomic<std::uint64_t> uploads = 0, uploaded = 0, downloads = 0, downloaded = 0;
};
GpuCopies& gpu_copies();

// Memory on a GPU; raises OutOfDeviceMemory naming the requester.
class GpuMemory {
 public:
  GpuMemory(int device, std::size_t bytes, std::string_view requester);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  int device() const { return device_; }
  std::uint64_t address() const { return address_; }
  void upload(const void* from, std::size_t bytes);
  void download(void* to, std::size_t bytes) const;

 private:
  int device_;
  std::size_t bytes_;
  std::uint64_t address_ = 0;
};

// The contents of a tensor: memory that TensorFlow and the NPU both use, without a copy. Where the NPU is a
// GPU there is a copy in its memory too, and either may be newer: who asks for the contents gets the newer
// ones.
// It is held as TensorFlow's tensor, as a handle on the host device, or as both; the other is made when asked
// for.
class Storage {
 public:
  // New memory of a device; raises OutOfDeviceMemory naming the requester.
  static std::shared_ptr<Storage> allocate(Device& device, int dtype, const Shape& shape,
                                           std::string_view requester);
  // New memory of TensorFlow's own allocator, counted as a device's; raises OutOfDeviceMemory likewise.
  static std::shared_ptr<Storage> allocate_by_host(Device& device, int dtype, const Shape& shape,
                                                   std::string_view requester);
  // The memory of a handle on the host device, which is taken over.
  static std::shared_ptr<Storage> adopt(TFE_TensorHandle* host, TF_Status* status);
  // The memory of a tensor, which is taken over.
  static std::shared_ptr<Storage> adopt(TF_Tensor* tensor);

  Storage() = default;
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  int dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  // The contents; fetched where a GPU has newer ones.
  void* data() const {
    settle();
    return data_;
  }
  // Where the contents are, be they old.
  void* address() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // Copies from memory of at least as many bytes.
  void fill(const void* from);

  // The contents in a GPU's memory; sent there where it has none or old ones.
  std::uint64_t on_gpu(int device, std::string_view requester);
  // The place for contents that a program of the GPU writes.
  std::uint64_t gpu_place(int device, std::string_view requester);
  void written_on_gpu();
  void written_by_host();
  // Fetches newer contents from the GPU.
  void settle() const {
    if (gpu_is_newer_.load(std::memory_order_acquire)) fetch(std::unique_lock(gpu_mutex_));
  }

  // Counts memory that TensorFlow allocated to a device's account; raises OutOfDeviceMemory naming the
  // requester.
  void charge(Device& device, std::string_view requester);

  // A handle of the same memory on the host device; owned by the storage. Marks it as shared.
  TFE_TensorHandle* host(TF_Status* status);
  // The same memory as TensorFlow's tensor; owned by the storage.
  TF_Tensor* tensor(TF_Status* status);
  // The same with contents that may be old: whoever reads them asks for the contents first.
  TF_Tensor* unsettled_tensor(TF_Status* status);

  // Host code may hold a reference that is not counted here: the memory must not be written again.
  bool shared_with_host() const { return shared_.load(std::memory_order_acquire); }
  void share_with_host() { shared_.store(true, std::memory_order_release); }
  // Whether this is the only reference to memory of TensorFlow's allocator; then it is not shared any more.
  // Nobody else may use the storage meanwhile.
  bool claim(TF_Status* status);

 private:
  void fetch(const std::unique_lock<std::mutex>& held) const;

  int dtype_ = 0;
  Shape shape_;
  mutable std::mutex gpu_mutex_;
  std::unique_ptr<GpuMemory> gpu_;  // with the mutex
  bool gpu_has_contents_ = false;
  mutable std::atomic<bool> gpu_is_newer_ = false;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device* charged_ = nullptr;
  std::atomic<bool> shared_ = false;
  std::atomic<TFE_TensorHandle*> host_ = nullptr;
  std::atomic<TF_Tensor*> tensor_ = nullptr;
};

// A resource variable: TensorFlow's own, on the host, and what is known of its value.
class Variable {
 public:
  enum class Access {
    Handle,   // by the device's handle alone
    Name,     // by its name too
    Passing,  // TensorFlow's own variable, seen for one call; what happens to it in between is not
  };

  // Takes over the handle of the host resource.
  Variable(Device& device, TFE_Context* context, TFE_TensorHandle* resource, int dtype, bool static_shape,
           Access access);
  ~Variable();
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

  // Held while the value is taken, replaced or written.
  std::mutex& mutex() { return mutex_; }

  std::uint64_t id() const { return id_; }
  Device& device() const { return device_; }
  int dtype() const { return dtype_; }
  bool static_shape() const { return static_shape_; }
  TFE_TensorHandle* resource() const { return resource_; }
  TFE_Context* context() const { return context_; }
  bool passing() const { return access_ == Access::Passing; }
  // Tells values apart. Of a passing variable it is the address of the value, or the version of lent memory:
  // to whoever keeps that memory the same number means the same value, since nobody writes to memory that
  // others refer to. 0: there is no value, or it may change unseen.
  std::uint64_t version();
  bool escaped() const { return escaped_.load(std::memory_order_acquire); }
  // Host code keeps the resource: its value may change at any time.
  void escape();

  // The following want the mutex held.

  // The current value; null and a bad status when it has none. One read from TensorFlow counts as shared: who
  // else refers to that memory is not known.
  std::shared_ptr<Storage> value(TF_Status* status);
  // Forgets the value: the host is about to change it, or has.
  void forget();
  // Reads passing variables by one operator of the host; false, with nothing read, where one has no value.
  static bool read_together(const std::vector<Variable*>& variables);
  // Gives passing variables new values by one operator of the host.
  static void assign_together(const std::vector<Variable*>& variables, const std::vector<TF_Tensor*>& values,
                              TF_Status* status);
  // Gives it a new value, here and in TensorFlow.
  void assign(std::shared_ptr<Storage> value, TF_Status* status);
  // Counts the host's functions that have the resource while they run.
  void lend() { ++lent_; }
  void take_back() { --lent_; }
  // Gives a value that others may refer to memory of its own, which TensorFlow's variable then has too: that
  // which it has where nobody else does. Null where host code may change it unseen, or with a bad status.
  std::shared_ptr<Storage> unshare(std::shared_ptr<Storage> value, std::string_view requester,
                                   TF_Status* status);
  // Whether the memory of the value can be written: nobody but TensorFlow's variable refers to it.
  bool writable(const std::shared_ptr<Storage>& value) const;
  // The value was written in place.
  void written() { version_.fetch_add(1, std::memory_order_acq_rel); }
  // Lets the host see the value, for as long as the mutex is held.
  void settle() const {
    if (value_) value_->settle();
  }
  // Gives all the value and the memory of the first, where theirs are the same; false, with nothing of what
  // they hold changed, where they differ or host code may change one unseen. Takes the locks itself.
  static bool share_value(const std::vector<Variable*>& variables, TF_Status* status);
  // Whether all have the same value. Takes the locks itself.
  static bool same_value(const std::vector<Variable*>& variables, TF_Status* status);
  // Whether it has the memory of another, and lets go of it, to follow the other in what becomes of it.
  bool lets_go(const Variable& other);
  void follow(Variable& other, const std::weak_ptr<Storage>& before, TF_Status* status);
  std::weak_ptr<Storage> memory() const { return value_; }
  // Whether host code can come to the value without asking here.
  bool open_to_host() const {
    return escaped() || access_ != Access::Handle || lent_ > 0 || takes_memory_ == false;
  }

 private:
  // Takes what was read, and deletes the handle, as the current value; null and a bad status where it does
  // not fit the device's memory.
  std::shared_ptr<Storage> take(TFE_TensorHandle* handle, TF_Status* status);
  TFE_TensorHandle* read(TF_Status* status) const;
  bool initialised(TF_Status* status) const;
  void hand_to_host(Storage& value, TF_Status* status);
  bool claim(Storage& value, TF_Status* status);
  static bool same(const std::vector<Variable*>& variables, TF_Status* status);

  std::mutex mutex_;
  Device& device_;
  TFE_Context* context_;
  TFE_TensorHandle* resource_;
  int dtype_;
  bool static_shape_;
  Access access_;
  int lent_ = 0;
  std::uint64_t id_;
  std::atomic<std::uint64_t> version_ = 1;
  std::atomic<bool> escaped_ = false;
  std::shared_ptr<Storage> value_;
  // Whether TensorFlow's variable takes the memory that it is assigned: after a scatter it copies values
  // instead, and memory written in place would not be its own. Not known until a value was handed over.
  std::optional<bool> takes_memory_;
};

// The locks of variables, in the order of their numbers, which all who take several keep to.
std::vector<std::unique_lock<std::mutex>> lock_all(std::vector<Variable*> variables);

// An operator of the host device, deleted at the end.
class HostOp {
 public:
  HostOp(TFE_Context* context, const char* name, TF_Status* status);
  ~HostOp();
  HostOp(const HostOp&) = delete;
  HostOp& operator=(const HostOp&) = delete;
  operator TFE_Op*() const { return op_; }
  // Those made so far.
  static std::uint64_t count();

 private:
  TFE_Op* op_;
};

// The name of the host's device: a cluster that this process joins gives it another one.
const char* host_device();
void set_host_device(const std::string& name);
// Whether the host's device has had the name that a cluster gives to it.
bool in_cluster();

// What a handle on the NPU points to.
struct Object {
  std::shared_ptr<Storage> storage;    // of a tensor
  std::shared_ptr<Variable> variable;  // of a variable
};

}  // namespace npu::tf
