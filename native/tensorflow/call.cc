// Inputs of a call, the way through the host's kernels, and the way through a program.
#include "tensorflow/call.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "core/errors.h"

namespace npu::tf {
namespace {

// TensorFlow reads the attributes of an operation through a field of the operation, and the steps that NPUs
// run at the same time share the one of their call.
std::mutex attributes_mutex;

int rank_of(void* data, TF_Status*) {
  const Object& object = *static_cast<Object*>(data);
  return object.storage ? object.storage->shape().rank() : 0;
}

std::int64_t dim_of(void* data, int index, TF_Status* status) {
  const Object& object = *static_cast<Object*>(data);
  if (!object.storage || index < 0 || index >= object.storage->shape().rank()) {
    api.TF_SetStatus(status, kInvalidArgument, "there is no such dimension");
    return -1;
  }
  return object.storage->shape().data()[index];
}

void free_object(void* data) { delete static_cast<Object*>(data); }

// Tensors that the device holds; strings, resources and variants stay handles of the host.
bool is_dense(int dtype) { return dtype != kString && dtype != kResource && dtype != kVariant; }

bool on_npu(int dtype) { return type_size(dtype) != 0; }

std::string result_text(std::string_view owner, int index, int dtype, const Shape& shape) {
  std::string dims;
  for (const std::int64_t dim : shape.dims()) dims += (dims.empty() ? "" : ",") + std::to_string(dim);
  const char* type = type_name(dtype);
  return "result " + std::to_string(index) + " of " + std::string(owner) + " with shape[" + dims +
         "] and type " + (*type ? type : std::to_string(dtype).c_str());
}

}  // namespace

// -- the device
// --------------------------------------------------------------------------------------------------

namespace {

// All devices; searched without a lock for every input that is not the device's own.
constexpr std::size_t kMostDevices = 64;
std::atomic<CustomDevice*> all_devices[kMostDevices];
std::atomic<std::size_t> device_slots = 0;

}  // namespace

CustomDevice::CustomDevice(int index, std::string name)
    : memory_(npu::Device::get(index)), name_(std::move(name)) {
  for (std::size_t slot = 0; slot < kMostDevices; ++slot) {
    CustomDevice* nobody = nullptr;
    if (!all_devices[slot].compare_exchange_strong(nobody, this)) continue;
    std::size_t known = device_slots.load();
    while (known <= slot && !device_slots.compare_exchange_weak(known, slot + 1)) {
    }
    return;
  }
  throw InvalidArgument("there are more than " + std::to_string(kMostDevices) + " NPUs");
}

CustomDevice::~CustomDevice() {
  for (auto& slot : all_devices) {
    CustomDevice* self = this;
    slot.compare_exchange_strong(self, nullptr);
  }
}

CustomDevice* CustomDevice::owner(TFE_TensorHandle* handle, TF_Status* status) const {
  const std::size_t slots = device_slots.load(std::memory_order_acquire);
  for (std::size_t slot = 0; slots > 1 && slot < slots; ++slot) {
    CustomDevice* device = all_devices[slot].load(std::memory_order_acquire);
    if (device && device != this && device->object(handle, status)) return device;
  }
  return nullptr;
}

Object* CustomDevice::foreign(TFE_TensorHandle* handle, TF_Status* status) const {
  const CustomDevice* device = owner(handle, status);
  return device ? device->object(handle, status) : nullptr;
}

CustomDevice* CustomDevice::find(int index) {
  // The last one: in a cluster that the process joined late, an NPU has two names.
  for (std::size_t slot = device_slots.load(std::memory_order_acquire); slot-- > 0;) {
    CustomDevice* device = all_devices[slot].load(std::memory_order_acquire);
    if (device && device->memory().index() == index) return device;
  }
  return nullptr;
}

CustomDevice* CustomDevice::find(std::string_view name) {
  for (std::size_t slot = device_slots.load(std::memory_order_acquire); slot-- > 0;) {
    CustomDevice* device = all_devices[slot].load(std::memory_order_acquire);
    if (device && device->name() == name) return device;
  }
  return nullptr;
}

CustomDevice& CustomDevice::home() {
  CustomDevice* first = this;
  for (std::size_t slot = device_slots.load(std::memory_order_acquire); slot-- > 0;) {
    CustomDevice* device = all_devices[slot].load(std::memory_order_acquire);
    if (device && device->memory().index() < first->memory().index()) first = device;
  }
  return *first;
}

TFE_TensorHandle* CustomDevice::copy(TFE_Context* context, TFE_TensorHandle* tensor, TF_Status* status) {
  TFE_TensorHandle* host = api.TFE_TensorHandleCopyToDevice(tensor, context, host_device(), status);
  if (!ok(status)) return nullptr;
  const int dtype = api.TFE_TensorHandleDataType(host);
  if (!is_dense(dtype)) return host;
  auto storage = Storage::adopt(host, status);
  if (!storage) return nullptr;
  try {
    storage->charge(memory_, "a tensor copied to the device");
  } catch (const OutOfDeviceMemory& error) {
    set_out_of_memory(status, error);
    return nullptr;
  }
  return wrap(context, dtype, {std::move(storage), nullptr}, status);
}

Object* CustomDevice::object(TFE_TensorHandle* handle, TF_Status* status) const {
  // None until the first handle is created.
  const char* ours = handle_name_.load(std::memory_order_acquire);
  if (!ours || api.TFE_TensorHandleDeviceName(handle, status) != ours) return nullptr;
  return static_cast<Object*>(api.TFE_TensorHandleDevicePointer(handle, status));
}

TFE_TensorHandle* CustomDevice::wrap(TFE_Context* context, int dtype, Object object, TF_Status* status) {
  const TFE_CustomDeviceTensorHandle methods{kCustomDeviceVersion, &rank_of, &dim_of, &free_object, nullptr};
  TFE_TensorHandle* handle = api.TFE_NewCustomDeviceTensorHandle(
      context, name_.c_str(), dtype, new Object(std::move(object)), methods, status);
  if (handle && !handle_name_.load(std::memory_order_relaxed)) {
    handle_name_.store(api.TFE_TensorHandleDeviceName(handle, status), std::memory_order_release);
  }
  return handle;
}

// -- inputs
// ------------------------------------------------------------------------------------------------------

namespace {

// Whether a tensor is in the memory of another process, a server of the cluster.
bool is_remote(TFE_TensorHandle* handle) {
  if (!in_cluster()) return false;
  const Status status;
  api.TFE_TensorHandleDevicePointer(handle, status);
  return api.TF_GetCode(status) == kInvalidArgument;
}

}  // namespace

Call::Call(CustomDevice& device, const TFE_Op* op, int* count, TFE_TensorHandle** outputs, TF_Status* status)
    : device_(device),
      op_(op),
      count_(count),
      outputs_(outputs),
      status_(status),
      context_(api.TFE_OpGetContext(op, status)),
      name_(api.TFE_OpGetName(op, status)) {
  const char* wanted = api.TFE_OpGetDevice(op, status);
  host_wanted_ = *wanted && device.name() != wanted;
  const int inputs = api.TFE_OpGetFlatInputCount(op, status);
  if (!ok()) return;
  inputs_.resize(static_cast<std::size_t>(inputs));
  for (int i = 0; i < inputs && ok(); ++i) {
    add_input(inputs_[static_cast<std::size_t>(i)], api.TFE_OpGetFlatInput(op, i, status));
  }
}

Call::Call(const Call& whole, CustomDevice& device, TF_Status* status, const char* name,
           const std::vector<TFE_TensorHandle*>& inputs, int* count, TFE_TensorHandle** outputs)
    : device_(device),
      op_(whole.op_),
      count_(count),
      outputs_(outputs),
      status_(status),
      context_(whole.context_),
      name_(name) {
  inputs_.resize(inputs.size());
  for (std::size_t i = 0; i < inputs.size() && ok(); ++i) add_input(inputs_[i], inputs[i], true);
}

void Call::add_input(Operand& operand, TFE_TensorHandle* handle, bool shared) {
  operand.handle = handle;
  operand.object = device_.object(handle, status_);
  if (Object* other = operand.object ? nullptr : device_.foreign(handle, status_)) {
    if (other->variable) {
      operand.object = other;
    } else if (shared) {
      operand.own = std::make_unique<Object>(*other);
      operand.object = operand.own.get();
    } else {
      operand.copy.reset(device_.copy(context_, handle, status_));
      if (!ok()) return;
      operand.handle = operand.copy.get();
      operand.object = device_.object(operand.handle, status_);
    }
  }
  if (Object* object = operand.object) {
    if (object->variable) {
      operand.kind = Described::Kind::Variable;
      operand.dtype = object->variable->dtype();
      has_variables_ = true;
      return;
    }
    operand.dtype = object->storage->dtype();
    if (on_npu(operand.dtype)) operand.kind = Described::Kind::Tensor;
    operand.shape = &object->storage->shape();
    return;
  }
  operand.dtype = api.TFE_TensorHandleDataType(handle);
  if (on_npu(operand.dtype) && is_remote(handle)) {
    operand.copy.reset(api.TFE_TensorHandleCopyToDevice(handle, context_, host_device(), status_));
    if (!ok()) return;
    operand.handle = handle = operand.copy.get();
  }
  has_foreign_resources_ = has_foreign_resources_ || operand.dtype == kResource;
  if (!on_npu(operand.dtype)) return;
  const int rank = api.TFE_TensorHandleNumDims(handle, status_);
  if (!ok()) return;
  std::int64_t* dims = operand.own_shape.resize(rank);
  for (int d = 0; d < rank; ++d) dims[d] = api.TFE_TensorHandleDim(handle, d, status_);
  operand.shape = &operand.own_shape;
  operand.host_data = api.TFE_TensorHandleDevicePointer(handle, status_);
  operand.kind = Described::Kind::Tensor;
}

std::string Call::attrs() const {
  TF_Buffer* buffer = api.TF_NewBuffer();
  {
    const std::lock_guard lock(attributes_mutex);
    api.TFE_OpAttrsSerialize(api.TFE_OpGetAttrs(op_), buffer, status_);
  }
  std::string bytes;
  if (ok()) bytes.assign(static_cast<const char*>(buffer->data), buffer->length);
  api.TF_DeleteBuffer(buffer);
  return bytes;
}

void Call::adopt_variables(const std::vector<int>& types) {
  std::vector<Operand*> operands;
  std::vector<Variable*> variables;
  for (std::size_t i = 0; i < std::min(inputs_.size(), types.size()); ++i) {
    Operand& operand = inputs_[i];
    if (operand.object || operand.dtype != kResource || !on_npu(types[i])) continue;
    TFE_TensorHandle* resource = api.TFE_TensorHandleCopySharingTensor(operand.handle, status_);
    if (!ok()) return;
    auto variable = std::make_shared<Variable>(device_.memory(), context_, resource, types[i], false,
                                               Variable::Access::Passing);
    operands.push_back(&operand);
    variables.push_back(variable.get());
    operand.own = std::make_unique<Object>(Object{nullptr, std::move(variable)});
  }
  const bool read = Variable::read_together(variables);
  for (Operand* operand : operands) {
    const Status status;  // uninitialised ones stay with the host, which reports the error
    if (!read && !operand->own->variable->value(status)) {
      operand->own.reset();
      continue;
    }
    operand->object = operand->own.get();
    operand->kind = Described::Kind::Variable;
    operand->dtype = operand->object->variable->dtype();
    has_variables_ = true;
  }
}

void Call::release_values() const {
  for (const Operand& operand : inputs_) {
    if (!operand.own || !operand.own->variable) continue;
    const std::lock_guard lock(operand.own->variable->mutex());
    operand.own->variable->forget();
  }
}

void Call::add_key(Key& key) const {
  constexpr int kKindShift = 56;
  constexpr int kTypeShift = 32;
  for (const Operand& operand : inputs_) {
    const std::int64_t kind = static_cast<std::int64_t>(operand.kind) << kKindShift;
    const std::int64_t type = static_cast<std::int64_t>(operand.dtype) << kTypeShift;
    switch (operand.kind) {
      case Described::Kind::Tensor:
        key.push_back(kind | type | operand.shape->rank());
        key.insert(key.end(), operand.shape->dims().begin(), operand.shape->dims().end());
        break;
      case Described::Kind::Variable: {
        Variable& variable = *operand.object->variable;
        key.push_back(kind | type);
        key.push_back(variable.passing() ? 0 : static_cast<std::int64_t>(variable.id()));
        if (variable.static_shape()) break;
        const Status status;  // a variable without a value has no shape
        const std::lock_guard lock(variable.mutex());
        if (const auto value = variable.value(status)) {
          key.push_back(value->shape().rank());
          key.insert(key.end(), value->shape().dims().begin(), value->shape().dims().end());
        }
        break;
      }
      case Described::Kind::Host:
        key.push_back(kind | type);
        break;
    }
  }
}

void Call::add_value(int input, std::string& values) const {
  const Operand& operand = inputs_[static_cast<std::size_t>(input)];
  if (operand.kind != Described::Kind::Tensor) return;
  const std::size_t bytes = static_cast<std::size_t>(operand.shape->elements()) * type_size(operand.dtype);
  values.append(static_cast<const char*>(operand.data()), bytes);
}

std::vector<Described> Call::describe() const {
  std::vector<Described> result;
  for (const Operand& operand : inputs_) {
    Described described;
    described.kind = operand.kind;
    described.dtype = operand.dtype;
    if (operand.kind == Described::Kind::Tensor) {
      described.shape = *operand.shape;
      if (operand.object) {
        described.storage = operand.object->storage;
      } else {
        TFE_TensorHandle* copy = api.TFE_TensorHandleCopySharingTensor(operand.handle, status_);
        if (ok()) described.storage = Storage::adopt(copy, status_);
      }
    } else if (operand.kind == Described::Kind::Variable) {
      described.variable = operand.object->variable;
      described.version = described.variable->version();
      const Status status;  // without a value: the shape stays empty, and it cannot be bound
      const std::lock_guard lock(described.variable->mutex());
      if (const auto value = described.variable->value(status)) {
        described.shape = value->shape();
      } else {
        described.kind = Described::Kind::Host;
      }
    }
    result.push_back(std::move(described));
  }
  return result;
}

std::vector<Variable*> Call::variables() const {
  std::vector<Variable*> result;
  for (const Operand& operand : inputs_) {
    result.push_back(operand.kind == Described::Kind::Variable ? operand.object->variable.get() : nullptr);
  }
  return result;
}

// -- outputs
// -----------------------------------------------------------------------------------------------------

void Call::set_output(int index, std::shared_ptr<Storage> storage) {
  outputs_[index] = handle_of(std::move(storage));
}

void Call::set_output(int index, std::shared_ptr<Variable> variable) {
  outputs_[index] = device_.home().wrap(context_, kResource, {nullptr, std::move(variable)}, status_);
}

void Call::set_output_to_value(int index, Variable& variable) {
  auto value = variable.value(status_);
  if (!value) return;
  CustomDevice* owner = CustomDevice::find(variable.device().index());
  outputs_[index] = (owner ? *owner : device_).wrap(context_, value->dtype(), {value, nullptr}, status_);
}

std::shared_ptr<Storage> Call::value_of(Variable& variable) {
  auto value = variable.value(status_);
  if (!value || &variable.device() == &device_.memory()) return value;
  auto copy = Storage::allocate(device_.memory(), value->dtype(), value->shape(), name_);
  copy->fill(value->data());
  return copy;
}

void Call::set_output_to_input(int index, int input) {
  const Operand& operand = inputs_[static_cast<std::size_t>(input)];
  if (operand.object && operand.object->variable && !operand.own) {
    set_output(index, operand.object->variable);
  } else if (operand.object && operand.object->storage) {
    set_output(index, operand.object->storage);
  } else if (TFE_TensorHandle* copy = api.TFE_TensorHandleCopySharingTensor(operand.handle, status_)) {
    set_host_output(index, copy);
  }
}

TFE_TensorHandle* Call::handle_of(std::shared_ptr<Storage> storage) {
  const int dtype = storage->dtype();
  return device_.wrap(context_, dtype, {std::move(storage), nullptr}, status_);
}

void Call::share_output(int index, TFE_TensorHandle* handle) {
  if (const Object* object = device_.object(handle, status_)) {
    const int dtype = object->variable ? kResource : object->storage->dtype();
    outputs_[index] = device_.wrap(context_, dtype, *object, status_);
  } else if (CustomDevice* other = ok() ? device_.owner(handle, status_) : nullptr) {
    const Object* made = other->object(handle, status_);
    const int dtype = made->variable ? kResource : made->storage->dtype();
    outputs_[index] = other->wrap(context_, dtype, *made, status_);
  } else if (ok()) {
    outputs_[index] = api.TFE_TensorHandleCopySharingTensor(handle, status_);
  }
}

void Call::set_host_output(int index, TFE_TensorHandle* handle) {
  if (host_wanted_ || !is_dense(api.TFE_TensorHandleDataType(handle))) {
    outputs_[index] = handle;
    return;
  }
  if (is_remote(handle)) {
    TFE_TensorHandle* copy = api.TFE_TensorHandleCopyToDevice(handle, context_, host_device(), status_);
    api.TFE_DeleteTensorHandle(std::exchange(handle, copy));
    if (!ok()) return;
  }
  auto storage = Storage::adopt(handle, status_);
  if (!storage) return;
  const auto same = [&](const Operand& operand) { return operand.address() == storage->address(); };
  if (!std::any_of(inputs_.begin(), inputs_.end(), same)) {
    try {
      storage->charge(device_.memory(), name_);
    } catch (const OutOfDeviceMemory& error) {
      const std::string text = result_text(name_, index, storage->dtype(), storage->shape());
      set_out_of_memory(status_, OutOfDeviceMemory(text, error.requested(), error.available()));
      return;
    }
  }
  set_output(index, std::move(storage));
}

void Call::drop_outputs() {
  for (int i = 0; i < *count_; ++i) {
    if (TFE_TensorHandle* handle = take_output(i)) api.TFE_DeleteTensorHandle(handle);
  }
}

bool Call::returns_resource() const {
  for (int i = 0; i < *count_; ++i) {
    if (outputs_[i] && api.TFE_TensorHandleDataType(outputs_[i]) == kResource) return true;
  }
  return false;
}

// -- the host's way
// ------------------------------------------------------------------------------------------------

void Call::run_on_host(const char* function) {
  const HostOp op(context_, function ? function : name_, status_);
  if (!ok()) return;
  {
    const std::lock_guard lock(attributes_mutex);
    api.TFE_OpAddAttrs(op, api.TFE_OpGetAttrs(op_));
  }
  for (const Operand& operand : inputs_) {
    give_to_host(op, operand);
    if (!ok()) return;
  }
  std::vector<TFE_TensorHandle*> results(static_cast<std::size_t>(*count_), nullptr);
  int count = *count_;
  api.TFE_Execute(op, results.data(), &count, status_);
  if (!ok()) return;
  *count_ = count;
  for (int i = 0; i < count; ++i) set_host_output(i, results[static_cast<std::size_t>(i)]);
}

void Call::give_to_host(TFE_Op* op, const Operand& operand) {
  TFE_TensorHandle* handle = operand.handle;
  if (const Object* object = operand.object) {
    handle = object->variable ? object->variable->resource() : object->storage->host(status_);
  }
  if (ok()) api.TFE_OpAddInput(op, handle, status_);
}

void Call::run_on_host(const HostOperator& made) {
  const HostOp op(context_, made.name.c_str(), status_);
  for (const auto& [name, value] : made.attrs) {
    if (!ok()) return;
    api.TFE_OpSetAttrValueProto(op, name.c_str(), value.data(), value.size(), status_);
  }
  for (const int input : made.inputs) {
    if (!ok()) return;
    give_to_host(op, inputs_[static_cast<std::size_t>(input)]);
  }
  if (!ok()) return;
  std::vector<TFE_TensorHandle*> results(static_cast<std::size_t>(made.made), nullptr);
  int count = made.made;
  api.TFE_Execute(op, results.data(), &count, status_);
  if (!ok()) return;
  for (std::size_t i = 0; i < made.results.size(); ++i) {
    auto& result = results[static_cast<std::size_t>(made.results[i])];
    set_host_output(static_cast<int>(i), std::exchange(result, nullptr));
  }
  for (TFE_TensorHandle* result : results) {
    if (result) api.TFE_DeleteTensorHandle(result);
  }
}

// -- the program's way
// ---------------------------------------------------------------------------------------------

namespace {

// Locks of the variables a program writes, taken in the order of their numbers.
class WriteLocks {
 public:
  explicit WriteLocks(std::vector<Variable*> variables) : variables_(std::move(variables)) {
    std::sort(variables_.begin(), variables_.end(), by_id);
    variables_.erase(std::unique(variables_.begin(), variables_.end()), variables_.end());
  }
  // Also locks others that are not the program's.
  void lock(std::vector<Variable*> others) {
    others.insert(others.end(), variables_.begin(), variables_.end());
    locks_ = lock_all(std::move(others));
  }
  bool covers(const Variable* variable) const {
    return std::binary_search(variables_.begin(), variables_.end(), variable, by_id);
  }

 private:
  static bool by_id(const Variable* a, const Variable* b) { return a->id() < b->id(); }
  std::vector<Variable*> variables_;
  std::vector<std::unique_lock<std::mutex>> locks_;
};

// Variables that have the memory of another, which is written: they let go of it meanwhile, so that it can be
// written in place, and follow it at the end, whatever became of it.
class Followers {
 public:
  using Groups = std::vector<std::pair<Variable*, std::vector<Variable*>>>;
  Followers(const Groups& groups, TF_Status* status) : status_(status) {
    for (const auto& [written, others] : groups) {
      for (Variable* other : others) {
        if (other->lets_go(*written)) following_.push_back({other, written, written->memory()});
      }
    }
  }
  ~Followers() {
    const Status own;  // report an earlier failure first
    TF_Status* status = ok(status_) ? status_ : static_cast<TF_Status*>(own);
    for (const auto& [other, written, before] : following_) other->follow(*written, before, status);
  }
  Followers(const Followers&) = delete;
  Followers& operator=(const Followers&) = delete;
  static std::vector<Variable*> all(const Groups& groups) {
    std::vector<Variable*> found;
    for (const auto& [written, others] : groups) found.insert(found.end(), others.begin(), others.end());
    return found;
  }

 private:
  struct Following {
    Variable* other;
    Variable* written;
    std::weak_ptr<Storage> before;
  };
  std::vector<Following> following_;
  TF_Status* status_;
};

// Below this size, copying over the old value is cheaper than passing TensorFlow a new tensor.
constexpr std::size_t kCopyBack = 32 << 10;

// Copies the first elements under another shape.
std::shared_ptr<Storage> leading(npu::Device& device, const Storage& whole, const Shape& shape,
                                 std::string_view requester) {
  auto part = Storage::allocate(device, whole.dtype(), shape, requester);
  part->fill(whole.data());
  return part;
}

}  // namespace

std::vector<std::shared_ptr<LentMemory>> Call::lend_variables(const FunctionPlan& plan,
                                                              std::vector<std::shared_ptr<Storage>>& values) {
  std::vector<std::shared_ptr<LentMemory>> lent(plan.outputs.size());
  if (plan.gpu) return lent;  // it writes no memory of the host
  std::vector<Variable*> variables;
  for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
    const ProgramOutput& output = plan.outputs[i];
    const auto at = static_cast<std::size_t>(output.port.index);
    if (output.port.kind != Port::Kind::Variable || !output.aliased || !values[at]) continue;
    Variable& variable = *inputs_[at].object->variable;
    if (!variable.passing() || values[at]->bytes() == 0) continue;
    lent[i] = LentMemory::find(values[at]->address());
    if (!lent[i]) lent[i] = LentMemory::copy_of(*values[at], variable.device(), plan.name);
    values[at].reset();
    variable.forget();
    variables.push_back(&variable);
  }
  std::vector<TF_Tensor*> tensors;
  for (const auto& memory : lent) {
    if (memory) tensors.push_back(LentMemory::lend(memory));
  }
  Variable::assign_together(variables, tensors, status_);
  for (TF_Tensor* tensor : tensors) api.TF_DeleteTensor(tensor);
  return lent;
}

void Call::run_program(FunctionPlan& plan, Generators& generators) {
  const auto variable_at = [&](std::size_t at) -> Variable& { return *inputs_[at].object->variable; };
  std::vector<Variable*> written;
  for (const ProgramOutput& output : plan.outputs) {
    if (output.port.kind != Port::Kind::Variable) continue;
    written.push_back(&variable_at(static_cast<std::size_t>(output.port.index)));
  }
  WriteLocks locks(std::move(written));
  std::vector<std::shared_ptr<Storage>> values(inputs_.size());  // of variables
  // Read-only variables come first: a thread that holds locks never waits for another variable.
  const auto read_first = [&](const Port& port) {
    if (port.kind != Port::Kind::Variable) return;
    const auto at = static_cast<std::size_t>(port.index);
    Variable& variable = variable_at(at);
    if (values[at] || locks.covers(&variable)) return;
    const std::lock_guard lock(variable.mutex());
    values[at] = value_of(variable);
  };
  for (const Port& port : plan.inputs) read_first(port);
  for (const OtherResult& other : plan.others) read_first(other.port);
  if (!ok()) return;
  locks.lock(Followers::all(followers_));
  const Followers followers(std::exchange(followers_, {}), status_);

  Generators::Drawn drawn = generators.draw(plan);
  std::vector<Place> in;
  in.reserve(plan.inputs.size());
  for (const Port& port : plan.inputs) {
    const auto at = static_cast<std::size_t>(port.index);
    if (port.kind == Port::Kind::Variable) {
      if (!values[at]) values[at] = value_of(variable_at(at));
      if (!ok()) return;
      in.push_back({values[at].get()});
    } else if (port.kind == Port::Kind::Random) {
      in.push_back({nullptr, &drawn.counters[2 * at], 2 * sizeof(std::uint64_t)});
    } else if (inputs_[at].has_storage()) {
      in.push_back({inputs_[at].object->storage.get()});
    } else {
      const auto elements = static_cast<std::size_t>(inputs_[at].shape->elements());
      in.push_back({nullptr, inputs_[at].host_data, elements * type_size(inputs_[at].dtype)});
    }
  }

  // The program reads a variable from another place.
  const auto move_input = [&](std::size_t at, Place place) {
    for (std::size_t k = 0; k < plan.inputs.size(); ++k) {
      const Port& port = plan.inputs[k];
      const bool same = port.kind == Port::Kind::Variable && static_cast<std::size_t>(port.index) == at;
      if (same) in[k] = place;
    }
  };
  // Gives a variable that is written in place memory of its own, one after the other: there is never a
  // second copy of all of them.
  const auto own = [&](Variable& variable, std::size_t at) {
    std::shared_ptr<Storage> moved = variable.unshare(values[at], plan.name, status_);
    if (!moved) return;
    values[at] = std::move(moved);
    move_input(at, {values[at].get()});
  };
  const std::vector<std::shared_ptr<LentMemory>> lent = lend_variables(plan, values);
  if (!ok()) return;

  std::vector<Place> out;
  std::vector<std::shared_ptr<Storage>> made(plan.outputs.size());
  out.reserve(plan.outputs.size());
  for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
    const ProgramOutput& output = plan.outputs[i];
    if (output.port.kind == Port::Kind::Variable && output.aliased) {
      const auto at = static_cast<std::size_t>(output.port.index);
      Variable& variable = *inputs_[at].object->variable;
      if (lent[i] && lent[i]->lent_once()) {
        move_input(at, {nullptr, lent[i]->data()});
        out.push_back({nullptr, lent[i]->data()});
        continue;
      }
      if (values[at] && !variable.writable(values[at])) {
        own(variable, at);
        if (!ok()) return;
      }
      if (values[at] && variable.writable(values[at])) {
        out.push_back({values[at].get()});
        continue;
      }
    }
    try {
      const bool variable = output.port.kind == Port::Kind::Variable;
      const auto at = static_cast<std::size_t>(output.port.index);
      npu::Device& memory = variable ? inputs_[at].object->variable->device() : device_.memory();
      made[i] = Storage::allocate(memory, output.dtype, output.shape, plan.name);
    } catch (const OutOfDeviceMemory& error) {
      throw OutOfDeviceMemory(result_text(plan.name, output.port.index, output.dtype, output.shape),
                              error.requested(), error.available());
    }
    if (output.port.kind == Port::Kind::Variable && output.aliased) {
      // The program takes both for one memory: the old value goes where the new one will be.
      const auto at = static_cast<std::size_t>(output.port.index);
      const void* old = lent[i] ? lent[i]->data() : values[at] ? values[at]->data() : nullptr;
      if (old) {
        made[i]->fill(old);
        move_input(at, {made[i].get()});
      }
    }
    out.push_back({made[i].get()});
  }

  const ShapeReport report = [&] {
    try {
      return plan.run(in, out, device_.memory());
    } catch (...) {
      // A failed run may have written in place.
      for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
        const Port& port = plan.outputs[i].port;
        if (port.kind == Port::Kind::Variable && !made[i]) {
          inputs_[static_cast<std::size_t>(port.index)].object->variable->written();
        }
      }
      throw;
    }
  }();

  std::vector<Variable*> assigned;
  std::vector<TF_Tensor*> new_values;
  for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
    const ProgramOutput& output = plan.outputs[i];
    if (output.port.kind == Port::Kind::Random) {
      generators.move(drawn, plan, output.port.index, *static_cast<const std::uint64_t*>(made[i]->data()));
    }
    if (output.port.kind != Port::Kind::Variable) continue;
    const auto at = static_cast<std::size_t>(output.port.index);
    Variable& variable = *inputs_[at].object->variable;
    if (!made[i]) {
      variable.written();
      if (values[at] && variable.open_to_host()) values[at]->settle();
      continue;
    }
    values[at].reset();
    if (variable.passing()) {
      assigned.push_back(&variable);
      new_values.push_back(made[i]->tensor(status_));
      continue;
    }
    const bool copied_back = !plan.gpu && made[i]->bytes() <= kCopyBack;
    std::shared_ptr<Storage> old = copied_back ? variable.value(status_) : nullptr;
    if (!ok()) return;
    if (old && variable.writable(old) && old->bytes() == made[i]->bytes()) {
      old->fill(made[i]->data());
      variable.written();
    } else {
      old.reset();
      variable.assign(std::move(made[i]), status_);
      if (!ok()) return;
    }
  }
  Variable::assign_together(assigned, new_values, status_);
  if (!ok()) return;

  for (const auto& [index, dims] : report) {
    std::shared_ptr<Storage>& whole = made[static_cast<std::size_t>(index)];
    const ProgramOutput& output = plan.outputs[static_cast<std::size_t>(index)];
    if (output.port.kind == Port::Kind::Output && !std::ranges::equal(whole->shape().dims(), dims)) {
      whole = leading(device_.memory(), *whole, Shape(dims), plan.name);
    }
  }
  for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
    const ProgramOutput& output = plan.outputs[i];
    if (output.port.kind == Port::Kind::Output) set_output(output.port.index, made[i]);
  }
  for (const OtherResult& other : plan.others) {
    const int index = other.port.index;
    switch (other.port.kind) {
      case Port::Kind::Constant:
        set_output(other.result, other.constant);
        break;
      case Port::Kind::Variable: {
        const auto at = static_cast<std::size_t>(index);
        auto value = locks.covers(&variable_at(at)) ? value_of(variable_at(at)) : values[at];
        if (value) set_output(other.result, std::move(value));
        break;
      }
      case Port::Kind::Output:
        for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
          const Port& port = plan.outputs[i].port;
          if (port.kind == Port::Kind::Output && port.index == index) set_output(other.result, made[i]);
        }
        break;
      case Port::Kind::Input:
        set_output_to_input(other.result, index);
        break;
      case Port::Kind::Random:
        break;
    }
    if (!ok()) return;
  }
}

void Call::follow() {
  for (const auto& [written, others] : std::exchange(followers_, {})) {
    std::vector<Variable*> all = others;
    all.push_back(written);
    const auto locks = lock_all(std::move(all));
    for (Variable* other : others) {
      if (ok()) other->follow(*written, {}, status_);
    }
  }
}

void Call::run(const std::shared_ptr<FunctionPlan>& plan, Generators& generators) {
  try {
    run_program(*plan, generators);
  } catch (const OutOfDeviceMemory& error) {
    set_out_of_memory(status_, error);
  } catch (const CallbackError& error) {
    fail(error.code(), error.what());
  } catch (const InvalidArgument& error) {
    fail(kInvalidArgument, error.what());
  } catch (const TaskError& error) {
    fail(kInvalidArgument, error.what());
  } catch (const std::exception& error) {
    fail(kInternal, error.what());
  }
}

}  // namespace npu::tf
