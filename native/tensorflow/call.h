// One operator or function call on the device: its inputs, and the ways to run it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "tensorflow/c_api.h"
#include "tensorflow/cache.h"
#include "tensorflow/callbacks.h"
#include "tensorflow/lent_memory.h"
#include "tensorflow/storage.h"

namespace npu::tf {

// The device as TensorFlow knows it.
class CustomDevice {
 public:
  CustomDevice(int index, std::string name);
  ~CustomDevice();
  CustomDevice(const CustomDevice&) = delete;
  CustomDevice& operator=(const CustomDevice&) = delete;

  npu::Device& memory() const { return memory_; }
  const std::string& name() const { return name_; }

  // What a handle points to; null for a handle that is not on this device.
  Object* object(TFE_TensorHandle* handle, TF_Status* status) const;
  // What a handle of another NPU points to; null for one of the host.
  Object* foreign(TFE_TensorHandle* handle, TF_Status* status) const;
  // The other NPU that a handle is of; null for one of the host or of this.
  CustomDevice* owner(TFE_TensorHandle* handle, TF_Status* status) const;
  // The NPU of a number, or of a name; null where TensorFlow has none.
  static CustomDevice* find(int index);
  static CustomDevice* find(std::string_view name);
  // The NPU whose handles all variables are, wherever their memory is: TensorFlow refuses functions with
  // handles of two custom devices.
  CustomDevice& home();
  // A tensor of another device as one of this; strings, resources and variants stay with the host.
  TFE_TensorHandle* copy(TFE_Context* context, TFE_TensorHandle* tensor, TF_Status* status);
  TFE_TensorHandle* wrap(TFE_Context* context, int dtype, Object object, TF_Status* status);

 private:
  npu::Device& memory_;
  std::string name_;
  mutable std::atomic<const char*> handle_name_ =
      nullptr;  // the very string TensorFlow gives for our handles
};

struct DeleteHandle {
  void operator()(TFE_TensorHandle* handle) const { api.TFE_DeleteTensorHandle(handle); }
};

// One input: a tensor the NPU can read, a variable, or something only the host knows.
struct Operand {
  Described::Kind kind = Described::Kind::Host;
  TFE_TensorHandle* handle = nullptr;
  Object* object = nullptr;  // of a handle on this device, of another NPU's variable, or `own`
  int dtype = 0;
  const Shape* shape = nullptr;
  Shape own_shape;              // of a host tensor
  std::unique_ptr<Object> own;  // of a variable of the host, or of a tensor that another NPU shares
  std::unique_ptr<TFE_TensorHandle, DeleteHandle> copy;  // of a tensor of another NPU
  void* host_data = nullptr;                             // of a host tensor

  bool has_storage() const { return object && object->storage; }
  void* data() const { return has_storage() ? object->storage->data() : host_data; }
  void* address() const { return has_storage() ? object->storage->address() : host_data; }
};

class Call {
 public:
  Call(CustomDevice& device, const TFE_Op* op, int* count, TFE_TensorHandle** outputs, TF_Status* status);
  // A function called as a step of another call, whose attributes it shares.
  Call(const Call& whole, const char* name, const std::vector<TFE_TensorHandle*>& inputs, int* count,
       TFE_TensorHandle** outputs)
      : Call(whole, whole.device_, whole.status_, name, inputs, count, outputs) {}
  // The same on another device, with a status of its own: such steps may run at the same time.
  Call(const Call& whole, CustomDevice& device, TF_Status* status, const char* name,
       const std::vector<TFE_TensorHandle*>& inputs, int* count, TFE_TensorHandle** outputs);

  // Other variables that have the memory of one that the call writes; they have its new value afterwards.
  void add_followers(Variable* written, std::vector<Variable*> others) {
    followers_.emplace_back(written, std::move(others));
  }
  // After a way other than a program's, which does it itself.
  void follow();

  bool ok() const { return tf::ok(status_); }
  const char* name() const { return name_; }
  TFE_Context* context() const { return context_; }
  npu::Device& memory() const { return device_.memory(); }
  CustomDevice& device() const { return device_; }
  TF_Status* status() const { return status_; }
  const std::vector<Operand>& inputs() const { return inputs_; }
  int output_count() const { return *count_; }
  // The serialised attributes.
  std::string attrs() const;
  bool has_variables() const { return has_variables_; }
  // The caller asked for another device and is here for the sake of a variable: the host runs it and keeps
  // the results.
  bool host_wanted() const { return host_wanted_; }

  // Takes variables of the host for variables, for this call; the element types say which inputs they are.
  void adopt_variables(const std::vector<int>& types);
  // Lets go of the values of variables of the host: functions that are called next write them in place.
  void release_values() const;
  bool has_foreign_resources() const { return has_foreign_resources_; }
  // Appends types and shapes of all inputs.
  void add_key(Key& key) const;
  void add_value(int input, std::string& values) const;
  std::vector<Described> describe() const;
  std::vector<Variable*> variables() const;

  // Runs the operator, or a function in its place, with the host's kernels on the same memory.
  void run_on_host(const char* function = nullptr);
  // Runs an operator of the host in place of a function.
  void run_on_host(const HostOperator& made);
  void run(const std::shared_ptr<FunctionPlan>& plan, Generators& generators);

  void set_output(int index, std::shared_ptr<Storage> storage);
  void set_output(int index, std::shared_ptr<Variable> variable);
  // The value of a variable, whose mutex is held, on the variable's own device.
  void set_output_to_value(int index, Variable& variable);
  // The value of a variable, whose mutex is held, in memory of this device; null with a bad status.
  std::shared_ptr<Storage> value_of(Variable& variable);
  // One of the inputs as it is.
  void set_output_to_input(int index, int input);
  // Takes over a handle of the host; tensors become tensors of the device.
  void set_host_output(int index, TFE_TensorHandle* handle);
  // A tensor as a handle of this device, which the caller deletes.
  TFE_TensorHandle* handle_of(std::shared_ptr<Storage> storage);
  // What a handle is to the device.
  void look_at(Operand& operand, TFE_TensorHandle* handle) { add_input(operand, handle); }
  // Another handle of the same tensor.
  void share_output(int index, TFE_TensorHandle* handle);
  // Gives an output away again.
  TFE_TensorHandle* take_output(int index) { return std::exchange(outputs_[index], nullptr); }
  // After a failure: no output is left behind.
  void drop_outputs();
  bool returns_resource() const;
  void fail(int code, const std::string& message) { api.TF_SetStatus(status_, code, message.c_str()); }

 private:
  // `shared`: tensors of other NPUs are read where they are, else they are copied.
  void add_input(Operand& operand, TFE_TensorHandle* handle, bool shared = false);
  void give_to_host(TFE_Op* op, const Operand& operand);
  // The memory that a program writes variables of the host in, by the program's outputs; the variables have
  // it already. Where other tensors refer to it too, it must not be written.
  std::vector<std::shared_ptr<LentMemory>> lend_variables(const FunctionPlan& plan,
                                                          std::vector<std::shared_ptr<Storage>>& values);
  void run_program(FunctionPlan& plan, Generators& generators);

  CustomDevice& device_;
  const TFE_Op* op_;
  int* count_;
  TFE_TensorHandle** outputs_;
  TF_Status* status_;
  TFE_Context* context_;
  const char* name_;
  std::vector<Operand> inputs_;
  bool has_variables_ = false;
  bool host_wanted_ = false;
  bool has_foreign_resources_ = false;
  std::vector<std::pair<Variable*, std::vector<Variable*>>> followers_;
};

}  // namespace npu::tf
