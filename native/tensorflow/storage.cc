// Memory of tensors and the values of variables.
#include "tensorflow/storage.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "core/errors.h"
#include "tensorflow/callbacks.h"
#include "tensorflow/lent_memory.h"
#include "tensorflow/pool.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace npu::tf {
namespace {

// Requests huge pages for memory that may have been used before; only a hint.
void join_pages(void* data, std::size_t bytes) {
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t first = (start + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t last = (start + bytes) / kHugePage * kHugePage;
  if (first >= last) return;
  void* pages = static_cast<char*>(data) + (first - start);
  madvise(pages, last - first, MADV_HUGEPAGE);
  madvise(pages, last - first, MADV_COLLAPSE);
}

}  // namespace

void set_out_of_memory(TF_Status* status, const OutOfDeviceMemory& error) {
  const std::string text = "OOM when allocating tensor: " + std::string(error.what());
  api.TF_SetStatus(status, kResourceExhausted, text.c_str());
}

namespace {

std::atomic<const GpuCalls*> gpu_functions = nullptr;

const GpuCalls& gpu() {
  const GpuCalls* calls = gpu_functions.load(std::memory_order_acquire);
  if (!calls) throw InvalidArgument("the module for GPUs is not loaded");
  return *calls;
}

void check_gpu(int result, const char* what) {
  if (result != GpuCalls::kDone) throw std::runtime_error(std::string(what) + ": " + gpu().message());
}

}  // namespace

void set_gpu_calls(const GpuCalls* calls) { gpu_functions.store(calls, std::memory_order_release); }

GpuCopies& gpu_copies() {
  static auto* copies = new GpuCopies();
  return *copies;
}

GpuMemory::GpuMemory(int device, std::size_t bytes, std::string_view requester)
    : device_(device), bytes_(bytes) {
  std::size_t available = 0;
  const int result = gpu().allocate(device, bytes, &address_, &available);
  if (result == GpuCalls::kNoMemory) throw OutOfDeviceMemory(std::string(requester), bytes, available);
  check_gpu(result, "memory of a GPU");
}

GpuMemory::~GpuMemory() { gpu().release(device_, address_, bytes_); }

void GpuMemory::upload(const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  check_gpu(gpu().upload(device_, address_, from, bytes), "a copy to the GPU");
  ++gpu_copies().uploads;
  gpu_copies().uploaded += bytes;
}

void GpuMemory::download(void* to, std::size_t bytes) const {
  if (bytes == 0) return;
  check_gpu(gpu().download(device_, to, address_, bytes), "a copy from the GPU");
  ++gpu_copies().downloads;
  gpu_copies().downloaded += bytes;
}

std::int64_t* Shape::resize(int rank) {
  rank_ = rank;
  more_ = rank > kInline ? std::make_unique<std::int64_t[]>(static_cast<std::size_t>(rank)) : nullptr;
  return more_ ? more_.get() : inline_;
}

void Shape::assign(std::span<const std::int64_t> dims) {
  std::copy(dims.begin(), dims.end(), resize(static_cast<int>(dims.size())));
}

std::int64_t Shape::elements() const {
  const auto all = dims();
  return std::accumulate(all.begin(), all.end(), std::int64_t{1}, std::multiplies<>());
}

std::shared_ptr<Storage> Storage::allocate(Device& device, int dtype, const Shape& shape,
                                           std::string_view requester) {
  auto storage = std::make_shared<Storage>();
  storage->dtype_ = dtype;
  storage->shape_ = shape;
  storage->bytes_ = static_cast<std::size_t>(shape.elements()) * type_size(dtype);
  Block block = TensorPool::of(device).take(storage->bytes_, requester);
  storage->data_ = block.data();
  storage->tensor_ = api.TF_NewTensor(dtype, shape.data(), shape.rank(), block.data(), storage->bytes_,
                                      &Block::free_tensor, block.owner());
  block.release();
  // Empty tensors need no memory.
  if (storage->bytes_ == 0) storage->data_ = api.TF_TensorData(storage->tensor_);
  return storage;
}

std::shared_ptr<Storage> Storage::allocate_by_host(Device& device, int dtype, const Shape& shape,
                                                   std::string_view requester) {
  const std::size_t bytes = static_cast<std::size_t>(shape.elements()) * api.TF_DataTypeSize(dtype);
  device.charge(MemoryUse::Buffers, bytes, requester);
  TF_Tensor* tensor = api.TF_AllocateTensor(dtype, shape.data(), shape.rank(), bytes);
  if (!tensor) {
    device.discharge(MemoryUse::Buffers, bytes);
    throw OutOfDeviceMemory(std::string(requester), bytes, 0);
  }
  auto storage = adopt(tensor);
  storage->charged_ = &device;
  join_pages(storage->data_, storage->bytes_);
  return storage;
}

std::shared_ptr<Storage> Storage::adopt(TFE_TensorHandle* host, TF_Status* status) {
  auto storage = std::make_shared<Storage>();
  storage->host_ = host;
  storage->shared_ = true;
  storage->dtype_ = api.TFE_TensorHandleDataType(host);
  const int rank = api.TFE_TensorHandleNumDims(host, status);
  if (!ok(status)) return nullptr;
  std::int64_t* dims = storage->shape_.resize(rank);
  for (int i = 0; i < rank; ++i) dims[i] = api.TFE_TensorHandleDim(host, i, status);
  storage->data_ = api.TFE_TensorHandleDevicePointer(host, status);
  if (!ok(status)) return nullptr;
  storage->bytes_ =
      static_cast<std::size_t>(storage->shape_.elements()) * api.TF_DataTypeSize(storage->dtype_);
  return storage;
}

std::shared_ptr<Storage> Storage::adopt(TF_Tensor* tensor) {
  auto storage = std::make_shared<Storage>();
  storage->tensor_ = tensor;
  storage->dtype_ = api.TF_TensorType(tensor);
  const int rank = api.TF_NumDims(tensor);
  std::int64_t* dims = storage->shape_.resize(rank);
  for (int i = 0; i < rank; ++i) dims[i] = api.TF_Dim(tensor, i);
  storage->data_ = api.TF_TensorData(tensor);
  storage->bytes_ = api.TF_TensorByteSize(tensor);
  return storage;
}

void Storage::fill(const void* from) {
  if (bytes_ != 0) std::memcpy(data_, from, bytes_);  // empty tensors may have a null address
  written_by_host();
}

std::uint64_t Storage::gpu_place(int device, std::string_view requester) {
  const std::unique_lock lock(gpu_mutex_);
  if (gpu_ && gpu_->device() == device) return gpu_->address();
  fetch(lock);  // another GPU may have newer contents
  gpu_.reset();
  gpu_has_contents_ = false;
  gpu_ = std::make_unique<GpuMemory>(device, bytes_, requester);
  return gpu_->address();
}

std::uint64_t Storage::on_gpu(int device, std::string_view requester) {
  {
    const std::lock_guard lock(gpu_mutex_);
    if (gpu_ && gpu_->device() == device && gpu_has_contents_) return gpu_->address();
  }
  const std::uint64_t address = gpu_place(device, requester);
  const std::lock_guard lock(gpu_mutex_);
  gpu_->upload(data_, bytes_);
  gpu_has_contents_ = true;
  return address;
}

void Storage::written_on_gpu() {
  const std::lock_guard lock(gpu_mutex_);
  gpu_has_contents_ = true;
  gpu_is_newer_.store(true, std::memory_order_release);
}

void Storage::written_by_host() {
  const std::lock_guard lock(gpu_mutex_);
  gpu_has_contents_ = false;
  gpu_is_newer_.store(false, std::memory_order_release);
}

void Storage::fetch(const std::unique_lock<std::mutex>&) const {
  if (!gpu_is_newer_.load(std::memory_order_acquire)) return;  // another thread was faster
  gpu_->download(data_, bytes_);
  gpu_is_newer_.store(false, std::memory_order_release);
}

namespace {

// Exceptions must not cross this boundary: a failed copy becomes the status.
bool settled(const Storage& storage, TF_Status* status) {
  try {
    storage.settle();
    return true;
  } catch (const std::exception& error) {
    api.TF_SetStatus(status, kInternal, error.what());
    return false;
  }
}

}  // namespace

void Storage::charge(Device& device, std::string_view requester) {
  device.charge(MemoryUse::Buffers, bytes_, requester);
  charged_ = &device;
}

Storage::~Storage() {
  if (charged_) charged_->discharge(MemoryUse::Buffers, bytes_);
  if (TFE_TensorHandle* host = host_) api.TFE_DeleteTensorHandle(host);
  if (TF_Tensor* tensor = tensor_) api.TF_DeleteTensor(tensor);
}

TFE_TensorHandle* Storage::host(TF_Status* status) {
  if (!settled(*this, status)) return nullptr;
  share_with_host();
  if (TFE_TensorHandle* host = host_.load(std::memory_order_acquire)) return host;
  TFE_TensorHandle* made = api.TFE_NewTensorHandle(tensor_, status);
  if (!ok(status)) return nullptr;
  TFE_TensorHandle* first = nullptr;
  if (host_.compare_exchange_strong(first, made)) return made;
  api.TFE_DeleteTensorHandle(made);
  return first;
}

TF_Tensor* Storage::tensor(TF_Status* status) {
  return settled(*this, status) ? unsettled_tensor(status) : nullptr;
}

TF_Tensor* Storage::unsettled_tensor(TF_Status* status) {
  if (TF_Tensor* tensor = tensor_.load(std::memory_order_acquire)) return tensor;
  TF_Tensor* made = api.TFE_TensorHandleResolve(host_, status);
  if (!ok(status)) return nullptr;
  TF_Tensor* first = nullptr;
  if (tensor_.compare_exchange_strong(first, made)) return made;
  api.TF_DeleteTensor(made);
  return first;
}

bool Storage::claim(TF_Status* status) {
  TF_Tensor* held = tensor(status);
  if (TFE_TensorHandle* host = host_.exchange(nullptr)) api.TFE_DeleteTensorHandle(host);
  TF_Tensor* own = ok(status) ? api.TF_TensorMaybeMove(held) : nullptr;
  if (!own) return false;
  tensor_.store(own, std::memory_order_release);
  shared_.store(false, std::memory_order_release);
  join_pages(data_, bytes_);
  return true;
}

namespace {

std::atomic<std::uint64_t> next_variable = 1;
std::atomic<std::uint64_t> host_operators = 0;
std::atomic<const char*> host_name = "/job:localhost/replica:0/task:0/device:CPU:0";
std::atomic<bool> host_renamed = false;

}  // namespace

const char* host_device() { return host_name.load(std::memory_order_acquire); }

void set_host_device(const std::string& name) {
  if (name == host_device()) return;
  // The old name may be in use on another thread: there are only ever a few, they are kept.
  host_name.store((new std::string(name))->c_str(), std::memory_order_release);
  host_renamed.store(true, std::memory_order_relaxed);
}

bool in_cluster() { return host_renamed.load(std::memory_order_relaxed); }

HostOp::HostOp(TFE_Context* context, const char* name, TF_Status* status)
    : op_(api.TFE_NewOp(context, name, status)) {
  host_operators.fetch_add(1, std::memory_order_relaxed);
  if (op_) api.TFE_OpSetDevice(op_, host_device(), status);
}

std::uint64_t HostOp::count() { return host_operators.load(std::memory_order_relaxed); }

HostOp::~HostOp() {
  if (op_) api.TFE_DeleteOp(op_);
}

Variable::Variable(Device& device, TFE_Context* context, TFE_TensorHandle* resource, int dtype,
                   bool static_shape, Access access)
    : device_(device),
      context_(context),
      resource_(resource),
      dtype_(dtype),
      static_shape_(static_shape),
      access_(access),
      id_(next_variable.fetch_add(1)) {}

Variable::~Variable() {
  value_.reset();
  api.TFE_DeleteTensorHandle(resource_);
}

std::uint64_t Variable::version() {
  if (escaped()) return 0;
  if (!passing()) return version_.load(std::memory_order_acquire);
  const Status status;
  const std::lock_guard lock(mutex_);
  const auto current = value(status);
  if (!current) return 0;
  const auto lent = LentMemory::find(current->address());
  return lent ? lent->version() : reinterpret_cast<std::uintptr_t>(current->address());
}

void Variable::escape() {
  const std::lock_guard lock(mutex_);
  escaped_.store(true, std::memory_order_release);
  forget();
}

TFE_TensorHandle* Variable::read(TF_Status* status) const {
  const HostOp read(context_, "ReadVariableOp", status);
  if (!ok(status)) return nullptr;
  api.TFE_OpSetAttrType(read, "dtype", dtype_);
  api.TFE_OpAddInput(read, resource_, status);
  if (!ok(status)) return nullptr;
  TFE_TensorHandle* handle = nullptr;
  int count = 1;
  api.TFE_Execute(read, &handle, &count, status);
  return ok(status) ? handle : nullptr;
}

std::shared_ptr<Storage> Variable::value(TF_Status* status) {
  if (value_) return value_;
  TFE_TensorHandle* handle = read(status);
  return handle ? take(handle, status) : nullptr;
}

bool Variable::initialised(TF_Status* status) const {
  const HostOp ask(context_, "VarIsInitializedOp", status);
  if (!ok(status)) return false;
  api.TFE_OpAddInput(ask, resource_, status);
  if (!ok(status)) return false;
  TFE_TensorHandle* handle = nullptr;
  int count = 1;
  api.TFE_Execute(ask, &handle, &count, status);
  if (!ok(status)) return false;
  TF_Tensor* answer = api.TFE_TensorHandleResolve(handle, status);
  api.TFE_DeleteTensorHandle(handle);
  if (!ok(status)) return false;
  const bool found = *static_cast<const bool*>(api.TF_TensorData(answer));
  api.TF_DeleteTensor(answer);
  return found;
}

std::shared_ptr<Storage> Variable::take(TFE_TensorHandle* handle, TF_Status* status) {
  TF_Tensor* tensor = api.TFE_TensorHandleResolve(handle, status);
  api.TFE_DeleteTensorHandle(handle);
  if (!ok(status)) return nullptr;
  // TensorFlow reads an anonymous variable that was never assigned as an empty vector.
  if (api.TF_NumDims(tensor) == 1 && api.TF_Dim(tensor, 0) == 0 && !initialised(status)) {
    api.TF_DeleteTensor(tensor);
    if (ok(status))
      api.TF_SetStatus(status, kFailedPrecondition, "the variable has no value yet: assign one");
    return nullptr;
  }
  std::shared_ptr<Storage> value = Storage::adopt(tensor);
  value->share_with_host();
  try {
    // Shared memory was accounted for at its allocation.
    if (!LentMemory::find(value->address())) value->charge(device_, "the value of a variable");
  } catch (const OutOfDeviceMemory& error) {
    set_out_of_memory(status, error);
    return nullptr;
  }
  if (!escaped()) value_ = value;
  return value;
}

bool Variable::read_together(const std::vector<Variable*>& variables) {
  if (variables.empty()) return true;
  const Status status;
  const HostOp read(variables[0]->context_, "_ReadVariablesOp", status);
  if (!status.ok()) return false;
  std::vector<int> types;
  for (const Variable* variable : variables) {
    types.push_back(variable->dtype_);
    api.TFE_OpAddInput(read, variable->resource_, status);
  }
  auto count = static_cast<int>(variables.size());
  api.TFE_OpSetAttrInt(read, "N", count);
  api.TFE_OpSetAttrTypeList(read, "dtypes", types.data(), count);
  std::vector<TFE_TensorHandle*> handles(variables.size(), nullptr);
  if (status.ok()) api.TFE_Execute(read, handles.data(), &count, status);
  if (!status.ok()) return false;
  bool all = true;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    const Status own;
    const std::lock_guard lock(variables[i]->mutex_);
    all = variables[i]->take(handles[i], own) && all;
  }
  return all;
}

namespace {

// The functions of Python that assign several variables, by the types of the variables.
std::string assign_function(TFE_Context* context, const std::vector<int>& types) {
  static std::mutex mutex;
  static auto* known = new std::map<std::vector<int>, std::string>();
  {
    const std::lock_guard lock(mutex);
    const auto found = known->find(types);
    if (found != known->end() && api.TFE_ContextHasFunction(context, found->second.c_str())) {
      return found->second;
    }
  }
  const InCallback inside;
  std::string name = callbacks()->assign_function(types);
  const std::lock_guard lock(mutex);
  return (*known)[types] = std::move(name);
}

}  // namespace

void Variable::assign_together(const std::vector<Variable*>& variables, const std::vector<TF_Tensor*>& values,
                               TF_Status* status) {
  if (variables.empty()) return;
  std::vector<int> types;
  for (const Variable* variable : variables) types.push_back(variable->dtype_);
  TFE_Context* context = variables[0]->context_;
  const HostOp assign(context, assign_function(context, types).c_str(), status);
  if (!ok(status)) return;
  for (const Variable* variable : variables) api.TFE_OpAddInput(assign, variable->resource_, status);
  for (TF_Tensor* value : values) {
    TFE_TensorHandle* handle = ok(status) ? api.TFE_NewTensorHandle(value, status) : nullptr;
    if (!handle) return;
    api.TFE_OpAddInput(assign, handle, status);
    api.TFE_DeleteTensorHandle(handle);
  }
  int count = 0;
  if (ok(status)) api.TFE_Execute(assign, nullptr, &count, status);
  for (Variable* variable : variables) variable->forget();
}

void Variable::forget() {
  settle();
  value_.reset();
  takes_memory_.reset();
  written();
}

void Variable::hand_to_host(Storage& value, TF_Status* status) {
  const HostOp assign(context_, "AssignVariableOp", status);
  if (!ok(status)) return;
  api.TFE_OpSetAttrType(assign, "dtype", dtype_);
  api.TFE_OpAddInput(assign, resource_, status);
  // TensorFlow's variable takes the memory itself; the handle made for that goes away again.
  // Its contents may arrive later; every reader of them calls this function.
  TF_Tensor* tensor = open_to_host() ? value.tensor(status) : value.unsettled_tensor(status);
  TFE_TensorHandle* handle = ok(status) ? api.TFE_NewTensorHandle(tensor, status) : nullptr;
  if (!ok(status)) return;
  api.TFE_OpAddInput(assign, handle, status);
  int count = 0;
  if (ok(status)) api.TFE_Execute(assign, nullptr, &count, status);
  api.TFE_DeleteTensorHandle(handle);
  if (takes_memory_ || !ok(status)) return;
  TFE_TensorHandle* now = read(status);
  if (!now) return;
  takes_memory_ = api.TFE_TensorHandleDevicePointer(now, status) == value.address();
  api.TFE_DeleteTensorHandle(now);
  if (!*takes_memory_) hand_to_host(value, status);  // its copy may be stale
}

void Variable::assign(std::shared_ptr<Storage> value, TF_Status* status) {
  value_.reset();
  hand_to_host(*value, status);
  written();
  if (ok(status) && !escaped()) value_ = std::move(value);
}

// TensorFlow counts references but tells only whether there is one: its variable lets go of the value for
// that long. Nobody can look meanwhile: who comes by the handle waits, and no function of the host has it.
bool Variable::claim(Storage& value, TF_Status* status) {
  if (access_ != Access::Handle || lent_ > 0) return false;
  value.tensor(status);  // do everything that can fail before releasing the variable's value
  if (!ok(status)) return false;
  const auto stand_in = Storage::allocate(device_, dtype_, Shape(), "a variable");
  hand_to_host(*stand_in, status);
  if (!ok(status)) return false;
  const bool alone = value.claim(status);
  hand_to_host(value, status);
  return alone && takes_memory_ == true && ok(status);
}

std::shared_ptr<Storage> Variable::unshare(std::shared_ptr<Storage> value, std::string_view requester,
                                           TF_Status* status) {
  if (escaped() || passing() || value != value_ || takes_memory_ == false) return nullptr;
  // One reference is the record's, one this function's, one the caller's.
  if (value.use_count() == 3 && claim(*value, status)) return value;
  if (!ok(status) || takes_memory_ == false) return nullptr;
  // TensorFlow keeps what it frees: memory of its allocator takes the place of the value before.
  auto own = Storage::allocate_by_host(device_, dtype_, value->shape(), requester);
  own->fill(value->data());
  value.reset();
  assign(own, status);
  return ok(status) && takes_memory_ == true ? own : nullptr;
}

std::vector<std::unique_lock<std::mutex>> lock_all(std::vector<Variable*> variables) {
  std::sort(variables.begin(), variables.end(),
            [](const Variable* a, const Variable* b) { return a->id() < b->id(); });
  variables.erase(std::unique(variables.begin(), variables.end()), variables.end());
  std::vector<std::unique_lock<std::mutex>> locks;
  for (Variable* variable : variables) locks.emplace_back(variable->mutex());
  return locks;
}

bool Variable::same(const std::vector<Variable*>& variables, TF_Status* status) {
  const auto first = variables[0]->value(status);
  return first && std::all_of(variables.begin() + 1, variables.end(), [&](Variable* variable) {
           const auto other = variable->value(status);
           return other &&
                  (other == first || (other->dtype() == first->dtype() &&
                                      std::ranges::equal(other->shape().dims(), first->shape().dims()) &&
                                      !std::memcmp(other->data(), first->data(), first->bytes())));
         });
}

bool Variable::same_value(const std::vector<Variable*>& variables, TF_Status* status) {
  const auto locks = lock_all(variables);
  return same(variables, status);
}

bool Variable::share_value(const std::vector<Variable*>& variables, TF_Status* status) {
  const auto locks = lock_all(variables);
  const auto seen_by_host = [](const Variable* variable) { return variable->open_to_host(); };
  if (std::any_of(variables.begin(), variables.end(), seen_by_host) || !same(variables, status)) return false;
  const auto first = variables[0]->value_;
  for (Variable* variable : variables) {
    if (variable->value_ != first) variable->assign(first, status);
    if (!ok(status) || variable->takes_memory_ == false) return false;
  }
  return true;
}

bool Variable::lets_go(const Variable& other) {
  if (!value_ || value_ != other.value_) return false;
  value_.reset();
  return true;
}

void Variable::follow(Variable& other, const std::weak_ptr<Storage>& before, TF_Status* status) {
  if (other.value_ && other.value_ == before.lock()) {
    value_ = other.value_;
    written();
  } else if (const auto value = other.value(status)) {
    assign(value, status);
  }
}

bool Variable::writable(const std::shared_ptr<Storage>& value) const {
  // One reference is the record's, one the caller's.
  return !escaped() && takes_memory_ == true && value == value_ && value.use_count() == 2 &&
         !value->shared_with_host();
}

}  // namespace npu::tf
