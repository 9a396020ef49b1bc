// PaddlePaddle's custom device "npu": host memory, synchronous streams, contiguous copies, and kernels of the
// hot operators, which the Graph Engine runs. Operators without a kernel here run on PaddlePaddle's CPU
// kernels.
//
// Built against the C interfaces of the installed PaddlePaddle (paddle_npu/native.py); it links nothing of
// the engine. A kernel asks Python for the program of its signature once, and keeps it.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "paddle/common/enforce.h"
#include "paddle/common/errors.h"
#include "paddle/phi/backends/device_ext.h"
#include "paddle/phi/capi/all.h"

namespace {

using phi::Context;
using phi::DenseTensor;
using OptionalTensor = paddle::optional<DenseTensor>;

constexpr auto kName = "npu";
constexpr auto kModule = "paddle_npu.eager";
constexpr size_t kAlignment = 64;

// -- device ------------------------------------------------------------------------------------------------

thread_local int current_device = 0;

C_Status Succeed() { return C_SUCCESS; }
C_Status SucceedOn(const C_Device) { return C_SUCCESS; }
C_Status SucceedOnStream(const C_Device, C_Stream) { return C_SUCCESS; }
C_Status SucceedOnEvent(const C_Device, C_Event) { return C_SUCCESS; }
C_Status SucceedOnBoth(const C_Device, C_Stream, C_Event) { return C_SUCCESS; }

C_Status SetDevice(const C_Device device) {
  current_device = device->id;
  return C_SUCCESS;
}

C_Status GetDevice(const C_Device device) {
  device->id = current_device;
  return C_SUCCESS;
}

// What a stream or an event stands for has happened when the call returns, so that both are mere names.
template <typename Handle>
C_Status Create(const C_Device, Handle* handle) {
  *handle = reinterpret_cast<Handle>(new char);
  return C_SUCCESS;
}

template <typename Handle>
C_Status Destroy(const C_Device, Handle handle) {
  delete reinterpret_cast<char*>(handle);
  return C_SUCCESS;
}

C_Status AddCallback(const C_Device device, C_Stream stream, C_Callback callback, void* data) {
  C_Status status = C_SUCCESS;
  callback(device, stream, data, &status);
  return status;
}

C_Status Copy(const C_Device, void* target, const void* source, size_t size) {
  std::memmove(target, source, size);
  return C_SUCCESS;
}

C_Status CopyAcross(const C_Device, const C_Device, void* target, const void* source, size_t size) {
  std::memmove(target, source, size);
  return C_SUCCESS;
}

C_Status CopyOnStream(const C_Device, C_Stream, void* target, const void* source, size_t size) {
  std::memmove(target, source, size);
  return C_SUCCESS;
}

C_Status CopyAcrossOnStream(const C_Device, const C_Device, C_Stream, void* target, const void* source,
                            size_t size) {
  std::memmove(target, source, size);
  return C_SUCCESS;
}

C_Status Fill(const C_Device, void* target, unsigned char value, size_t size) {
  std::memset(target, value, size);
  return C_SUCCESS;
}

C_Status Allocate(const C_Device, void** pointer, size_t size) {
  *pointer = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  return *pointer == nullptr ? C_FAILED : C_SUCCESS;
}

C_Status Release(const C_Device, void* pointer, size_t) {
  std::free(pointer);
  return C_SUCCESS;
}

size_t DeviceCount() {
  const char* given = std::getenv("NPU_DEVICE_COUNT");
  const int count = given == nullptr ? 1 : std::atoi(given);
  return static_cast<size_t>(std::max(count, 1));
}

C_Status GetCount(size_t* count) {
  *count = DeviceCount();
  return C_SUCCESS;
}

C_Status GetList(size_t* devices) {
  for (size_t i = 0; i < DeviceCount(); ++i) {
    devices[i] = i;
  }
  return C_SUCCESS;
}

C_Status GetMemory(const C_Device, size_t* total, size_t* free) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  *total = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * page;
  *free = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page;
  return C_SUCCESS;
}

C_Status GetChunk(const C_Device, size_t* size) {
  *size = kAlignment;
  return C_SUCCESS;
}

C_Status IsSupported(const C_Device, bool* supported) {
  *supported = true;
  return C_SUCCESS;
}

// -- copies of strided tensors
// -------------------------------------------------------------------------------

using Sizes = std::vector<int64_t>;

size_t BytesOf(PD_DataType type) {
  switch (type) {
    case PD_DataType::BOOL:
    case PD_DataType::UINT8:
    case PD_DataType::INT8:
      return 1;
    case PD_DataType::UINT16:
    case PD_DataType::INT16:
    case PD_DataType::FLOAT16:
    case PD_DataType::BFLOAT16:
      return 2;
    case PD_DataType::UINT32:
    case PD_DataType::INT32:
    case PD_DataType::FLOAT32:
      return 4;
    case PD_DataType::COMPLEX128:
      return 16;
    default:
      return 8;
  }
}

Sizes Contiguous(const Sizes& dims) {
  Sizes strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * dims[i];
  }
  return strides;
}

// Copies elements of `size` bytes between two places with strides of their own, the last axis innermost.
void CopyStrided(char* target, const Sizes& target_strides, const char* source, const Sizes& source_strides,
                 const Sizes& dims, size_t size, size_t axis = 0) {
  if (axis == dims.size()) {
    std::memcpy(target, source, size);
    return;
  }
  const auto forward = target_strides[axis] * static_cast<int64_t>(size);
  const auto onward = source_strides[axis] * static_cast<int64_t>(size);
  if (axis + 1 == dims.size() && target_strides[axis] == 1 && source_strides[axis] == 1) {
    std::memcpy(target, source, size * static_cast<size_t>(dims[axis]));
    return;
  }
  for (int64_t i = 0; i < dims[axis]; ++i, target += forward, source += onward) {
    if (axis + 1 == dims.size()) {
      std::memcpy(target, source, size);
    } else {
      CopyStrided(target, target_strides, source, source_strides, dims, size, axis + 1);
    }
  }
}

void ContiguousKernel(const Context& context, const DenseTensor& input, DenseTensor* out) {
  const Sizes dims = input.dims(), plain = Contiguous(dims);
  out->Resize(dims);
  out->set_strides(plain);
  out->set_offset(0);
  auto* target = static_cast<char*>(context.Alloc(out, input.dtype()));
  if (input.numel() > 0) {
    CopyStrided(target, plain, input.data<char>(), input.strides(), dims, BytesOf(input.dtype()));
  }
}

void AssignKernel(const Context& context, const OptionalTensor& input, DenseTensor* out) {
  if (input && input->valid()) {
    ContiguousKernel(context, *input, out);
  }
}

void StridedCopyKernel(const Context&, const DenseTensor& input, const std::vector<int64_t>& dims,
                       const std::vector<int64_t>& strides, int64_t offset, DenseTensor* out) {
  out->Resize(dims);
  out->set_strides(strides);
  out->set_offset(offset);
  if (input.numel() > 0) {
    CopyStrided(out->data<char>(), strides, input.data<char>(), input.strides(), dims,
                BytesOf(input.dtype()));
  }
}

using Element = std::array<char, 16>;

template <typename T>
Element Encoded(T value) {
  Element bytes{};
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

// A number in an element type; complex ones have no imaginary part.
Element Encoded(const phi::Scalar& value, PD_DataType type) {
  switch (type) {
    case PD_DataType::FLOAT16:
      return Encoded(phi::dtype::float16(value.to<float>()));
    case PD_DataType::BFLOAT16:
      return Encoded(phi::dtype::bfloat16(value.to<float>()));
    case PD_DataType::FLOAT32:
    case PD_DataType::COMPLEX64:
      return Encoded(value.to<float>());
    case PD_DataType::FLOAT64:
    case PD_DataType::COMPLEX128:
      return Encoded(value.to<double>());
    case PD_DataType::BOOL:
      return Encoded(value.to<bool>());
    default:  // the low bytes are those of the narrower integers
      return Encoded(value.to<int64_t>());
  }
}

void FillKernel(const Context& context, const DenseTensor& x, const phi::Scalar& value, DenseTensor* out) {
  const auto type = x.dtype();
  auto* target = static_cast<char*>(context.Alloc(out, type));
  if (out->numel() > 0) {
    const Sizes dims = out->dims();
    CopyStrided(target, out->strides(), Encoded(value, type).data(), Sizes(dims.size(), 0), dims,
                BytesOf(type));
  }
}

// -- kernels on the Graph Engine
// -----------------------------------------------------------------------------

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

struct Drop {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Object = std::unique_ptr<PyObject, Drop>;

Object Checked(PyObject* object) {
  if (object != nullptr) {
    return Object(object);
  }
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const Object text(value == nullptr ? nullptr : PyObject_Str(value));
  const char* reason = text == nullptr ? nullptr : PyUnicode_AsUTF8(text.get());
  std::string message = reason == nullptr ? "an operator of the NPU failed" : reason;
  PyErr_Clear();
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  PADDLE_THROW(common::errors::External(message));  // the only exceptions that a backward pass lets through
}

// A call of a kernel: what decides its program as text, and the tensors.
struct Call {
  std::string key;
  std::vector<const DenseTensor*> inputs;
  std::vector<DenseTensor*> outputs;

  void Add(const DenseTensor& tensor) {
    inputs.push_back(&tensor);
    Describe("i", tensor);
  }
  void Add(const OptionalTensor& tensor) {
    if (tensor && tensor->valid()) {
      Add(*tensor);
    } else {
      key += "i;";
    }
  }
  void Add(DenseTensor* tensor) {
    if (tensor == nullptr || tensor->raw_data() == nullptr || !tensor->valid()) {
      key += "o;";
      return;
    }
    outputs.push_back(tensor);
    Describe("o", *tensor);
  }
  void Add(bool value) { key += value ? "aTrue;" : "aFalse;"; }
  void Add(int value) { key += "a" + std::to_string(value) + ";"; }
  void Add(float value) {
    std::array<char, 32> text;
    std::snprintf(text.data(), text.size(), "a%.9g;", static_cast<double>(value));
    key += text.data();
  }
  void Add(const std::string& value) { key += "a'" + value + "';"; }
  void Add(const std::vector<int>& values) {
    key += "a[";
    for (const int value : values) {
      key += std::to_string(value) + ",";
    }
    key += "];";
  }

 private:
  void Describe(const char* kind, const DenseTensor& tensor) {
    key += kind + std::to_string(static_cast<int>(tensor.dtype()));
    for (const auto size : tensor.dims()) {
      key += "," + std::to_string(size);
    }
    key += ";";
  }
};

// Programs by their keys. Python objects: they are left to the end of the process.
class Programs {
 public:
  static Programs& Instance() {
    static auto* programs = new Programs;
    return *programs;
  }

  // The program of a key, made by Python the first time. The caller holds the lock of Python.
  PyObject* Find(const std::string& key) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto found = programs_.find(key); found != programs_.end()) {
        return found->second;
      }
    }
    const Object module = Checked(PyImport_ImportModule(kModule));
    Object made = Checked(PyObject_CallMethod(module.get(), "program", "s", key.c_str()));
    const std::lock_guard<std::mutex> lock(mutex_);
    return programs_.emplace(key, made.release()).first->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, PyObject*> programs_;
};

Object Addresses(const std::vector<void*>& pointers) {
  Object list = Checked(PyList_New(static_cast<Py_ssize_t>(pointers.size())));
  for (size_t i = 0; i < pointers.size(); ++i) {
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), PyLong_FromVoidPtr(pointers[i]));
  }
  return list;
}

// Runs a program. An output over an input's memory (an operator in place) is computed beside it first.
void Execute(const Context& context, const Call& call) {
  std::vector<void*> sources, targets;
  for (const auto* tensor : call.inputs) {  // of some only the shape is read, and there is no memory
    sources.push_back(tensor->initialized() ? tensor->data<void>() : nullptr);
  }
  struct Detour {
    std::unique_ptr<char[]> memory;
    void* target;
    size_t size;
  };
  std::vector<Detour> detours;
  for (auto* tensor : call.outputs) {
    void* target = context.Alloc(tensor, tensor->dtype());
    if (target != nullptr && std::find(sources.begin(), sources.end(), target) != sources.end()) {
      const size_t size = static_cast<size_t>(tensor->numel()) * BytesOf(tensor->dtype());
      detours.push_back({std::make_unique<char[]>(size), target, size});
      target = detours.back().memory.get();
    }
    targets.push_back(target);
  }
  {
    const Gil gil;
    PyObject* program = Programs::Instance().Find(call.key);
    const Object from = Addresses(sources), to = Addresses(targets);
    Checked(PyObject_CallFunctionObjArgs(program, from.get(), to.get(), nullptr));
  }
  for (const auto& detour : detours) {
    std::memcpy(detour.target, detour.memory.get(), detour.size);
  }
}

template <typename... Arguments>
void Run(const char* name, const Context& context, const Arguments&... arguments) {
  Call call{std::string(name) + ";", {}, {}};
  (call.Add(arguments), ...);
  Execute(context, call);
}

// A kernel whose arguments go to the operator as they are. PaddlePaddle tells inputs, attributes and outputs
// apart by the types of the function.
template <typename Name, typename... Arguments>
struct Kernel {
  static void Compute(const Context& context, Arguments... arguments) {
    Run(Name::value, context, arguments...);
  }
};

void NoDefinitions(const PD_KernelKey*, PD_Kernel*) {}

template <auto function>
void Register(const char* name, const std::vector<PD_DataType>& types) {
  phi::capi::CustomKernelArgsParseFunctor<decltype(function)> parsed;
  using Implementation = phi::capi::CustomKernelImpl<decltype(function), function>;
  for (const auto type : types) {
    PD_RegisterPhiKernel(name, kName, type, PD_DataLayout::ALL_LAYOUT, parsed.in_args_type.size(),
                         parsed.in_args_type.data(), parsed.attr_args_type.size(),
                         parsed.attr_args_type.data(), parsed.out_args_type.size(),
                         parsed.out_args_type.data(), NoDefinitions, Implementation::Compute,
                         reinterpret_cast<void*>(&Implementation::VariadicCompute));
  }
}

using In = const DenseTensor&;
using Maybe = const OptionalTensor&;
using Out = DenseTensor*;
using Text = const std::string&;
using Ints = const std::vector<int>&;

// One operator: its name, and the arguments of its kernel in PaddlePaddle's order.
#define NPU_OPERATOR(operator_name, ...)                                                 \
  struct operator_name##_name {                                                          \
    static constexpr auto value = #operator_name;                                        \
  };                                                                                     \
  const bool operator_name##_registered = [] {                                           \
    Register<&Kernel<operator_name##_name, __VA_ARGS__>::Compute>(#operator_name, kHot); \
    return true;                                                                         \
  }()

const std::vector<PD_DataType> kHot = {PD_DataType::FLOAT32, PD_DataType::FLOAT16, PD_DataType::BFLOAT16};
const std::vector<PD_DataType> kAll = {
    PD_DataType::BOOL,     PD_DataType::UINT8,     PD_DataType::UINT16,    PD_DataType::UINT32,
    PD_DataType::UINT64,   PD_DataType::INT8,      PD_DataType::INT16,     PD_DataType::INT32,
    PD_DataType::INT64,    PD_DataType::FLOAT16,   PD_DataType::FLOAT32,   PD_DataType::FLOAT64,
    PD_DataType::BFLOAT16, PD_DataType::COMPLEX64, PD_DataType::COMPLEX128};

const bool copies_registered = [] {
  // PaddlePaddle's executor gives its own `assign` a result on the CPU for an operand on the device.
  Register<&AssignKernel>("assign_raw", kAll);
  Register<&ContiguousKernel>("contiguous", kAll);
  Register<&StridedCopyKernel>("strided_copy", kAll);
  Register<&FillKernel>("fill", kAll);
  return true;
}();

NPU_OPERATOR(matmul, In, In, bool, bool, Out);
NPU_OPERATOR(matmul_grad, In, In, In, bool, bool, Out, Out);
NPU_OPERATOR(bmm, In, In, Out);
NPU_OPERATOR(bmm_grad, In, In, In, Out, Out);
NPU_OPERATOR(conv2d, In, In, Ints, Ints, Text, Ints, int, Text, Out);
NPU_OPERATOR(conv2d_grad, In, In, In, Ints, Ints, Text, Ints, int, Text, Out, Out);
NPU_OPERATOR(depthwise_conv2d, In, In, Ints, Ints, Text, int, Ints, Text, Out);
NPU_OPERATOR(depthwise_conv2d_grad, In, In, In, Ints, Ints, Text, int, Ints, Text, Out, Out);
NPU_OPERATOR(batch_norm, In, In, In, Maybe, Maybe, bool, float, float, Text, bool, bool, Out, Out, Out, Out,
             Out, Out);
NPU_OPERATOR(batch_norm_grad, In, Maybe, Maybe, Maybe, Maybe, In, In, Maybe, In, float, float, Text, bool,
             bool, bool, Out, Out, Out);
NPU_OPERATOR(layer_norm, In, Maybe, Maybe, float, int, Out, Out, Out);
NPU_OPERATOR(layer_norm_grad, In, Maybe, Maybe, In, In, In, float, int, Out, Out, Out);
NPU_OPERATOR(softmax, In, int, Out);
NPU_OPERATOR(softmax_grad, In, In, int, Out);
NPU_OPERATOR(gelu, In, bool, Out);
NPU_OPERATOR(gelu_grad, In, In, bool, Out);
NPU_OPERATOR(relu, In, Out);
NPU_OPERATOR(relu_grad, In, In, Out);
NPU_OPERATOR(sigmoid, In, Out);
NPU_OPERATOR(sigmoid_grad, In, In, Out);
NPU_OPERATOR(tanh, In, Out);
NPU_OPERATOR(tanh_grad, In, In, Out);
NPU_OPERATOR(exp, In, Out);
NPU_OPERATOR(add, In, In, Out);
NPU_OPERATOR(add_grad, In, In, In, int, Out, Out);
NPU_OPERATOR(subtract, In, In, Out);
NPU_OPERATOR(multiply, In, In, Out);
NPU_OPERATOR(multiply_grad, In, In, In, int, Out, Out);
NPU_OPERATOR(divide, In, In, Out);

}  // namespace

extern "C" __attribute__((visibility("default"))) void InitPlugin(CustomRuntimeParams* params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  static char name[] = "npu", kind[] = "host";
  params->device_type = name;
  params->sub_device_type = kind;
  C_DeviceInterface& device = *params->interface;
  std::memset(&device, 0, sizeof(C_DeviceInterface));
  device.size = sizeof(C_DeviceInterface);
  device.initialize = Succeed;
  device.finalize = Succeed;
  device.init_device = SetDevice;
  device.set_device = SetDevice;
  device.get_device = GetDevice;
  device.deinit_device = SucceedOn;
  device.create_stream = Create<C_Stream>;
  device.destroy_stream = Destroy<C_Stream>;
  device.query_stream = SucceedOnStream;
  device.stream_add_callback = AddCallback;
  device.create_event = Create<C_Event>;
  device.record_event = SucceedOnBoth;
  device.destroy_event = Destroy<C_Event>;
  device.query_event = SucceedOnEvent;
  device.synchronize_device = SucceedOn;
  device.synchronize_stream = SucceedOnStream;
  device.synchronize_event = SucceedOnEvent;
  device.stream_wait_event = SucceedOnBoth;
  device.device_memory_allocate = Allocate;
  device.device_memory_deallocate = Release;
  device.device_memory_set = Fill;
  device.host_memory_allocate = Allocate;
  device.host_memory_deallocate = Release;
  device.memory_copy_h2d = Copy;
  device.memory_copy_d2h = Copy;
  device.memory_copy_d2d = Copy;
  device.memory_copy_p2p = CopyAcross;
  device.async_memory_copy_h2d = CopyOnStream;
  device.async_memory_copy_d2h = CopyOnStream;
  device.async_memory_copy_d2d = CopyOnStream;
  device.async_memory_copy_p2p = CopyAcrossOnStream;
  device.get_device_count = GetCount;
  device.get_device_list = GetList;
  device.device_memory_stats = GetMemory;
  device.device_min_chunk_size = GetChunk;
  device.is_float16_supported = IsSupported;
  device.is_bfloat16_supported = IsSupported;
}
