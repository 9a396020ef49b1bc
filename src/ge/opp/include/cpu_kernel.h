// Custom AI CPU kernels: derive from CpuKernel, override Compute, name it with REGISTER_CPU_KERNEL.
//
//   class Scale : public aicpu::CpuKernel {
//    public:
//     uint32_t Compute(aicpu::CpuKernelContext& ctx) override { ... return aicpu::KERNEL_STATUS_OK; }
//   };
//   REGISTER_CPU_KERNEL("Scale", Scale);
//
// An output's shape is the most it can hold; a kernel that makes less calls
// ctx.Output(i)->GetTensorShape()->SetDimSizes(actual).
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "npu_opp_abi.h"
#include "securec.h"

namespace aicpu {

// -- types
// ------------------------------------------------------------------------------------------------------------

enum DataType {
  DT_FLOAT = 0,
  DT_FLOAT16 = 1,
  DT_INT8 = 2,
  DT_INT32 = 3,
  DT_UINT8 = 4,
  DT_INT16 = 6,
  DT_UINT16 = 7,
  DT_UINT32 = 8,
  DT_INT64 = 9,
  DT_UINT64 = 10,
  DT_DOUBLE = 11,
  DT_BOOL = 12,
  DT_STRING = 13,
  DT_COMPLEX64 = 16,
  DT_COMPLEX128 = 17,
  DT_BFLOAT16 = 27,
  DT_UNDEFINED = 28
};

enum Format { FORMAT_NCHW = 0, FORMAT_NHWC = 1, FORMAT_ND = 2 };

enum KernelStatus : uint32_t {
  KERNEL_STATUS_OK = 0,
  KERNEL_STATUS_PARAM_INVALID = 1,
  KERNEL_STATUS_INNER_ERROR = 2,
  KERNEL_STATUS_TIMEOUT = 3,
  KERNEL_STATUS_PROTOBUF_ERROR = 4,
  KERNEL_STATUS_SHARDER_ERROR = 5,
  KERNEL_STATUS_END_OF_SEQUENCE = 201
};

// Bytes of an element, -1 for types without a fixed size.
inline int GetSizeByDataType(DataType type) {
  switch (type) {
    case DT_BOOL:
    case DT_INT8:
    case DT_UINT8:
      return 1;
    case DT_FLOAT16:
    case DT_BFLOAT16:
    case DT_INT16:
    case DT_UINT16:
      return 2;
    case DT_FLOAT:
    case DT_INT32:
    case DT_UINT32:
      return 4;
    case DT_DOUBLE:
    case DT_INT64:
    case DT_UINT64:
    case DT_COMPLEX64:
      return 8;
    case DT_COMPLEX128:
      return 16;
    default:
      return -1;
  }
}

inline std::string DTypeStr(DataType type) {
  static const std::pair<DataType, const char*> names[] = {
      {DT_FLOAT, "DT_FLOAT"},   {DT_FLOAT16, "DT_FLOAT16"},  {DT_INT8, "DT_INT8"},
      {DT_INT32, "DT_INT32"},   {DT_UINT8, "DT_UINT8"},      {DT_INT16, "DT_INT16"},
      {DT_UINT16, "DT_UINT16"}, {DT_UINT32, "DT_UINT32"},    {DT_INT64, "DT_INT64"},
      {DT_UINT64, "DT_UINT64"}, {DT_DOUBLE, "DT_DOUBLE"},    {DT_BOOL, "DT_BOOL"},
      {DT_STRING, "DT_STRING"}, {DT_BFLOAT16, "DT_BFLOAT16"}};
  for (const auto& [known, name] : names) {
    if (known == type) return name;
  }
  return "DT_UNDEFINED";
}

template <class T>
std::string VectorToString(const std::vector<T>& values) {
  std::ostringstream text;
  for (std::size_t i = 0; i < values.size(); ++i) text << (i ? ", " : "") << values[i];
  return text.str();
}

// -- operands
// ---------------------------------------------------------------------------------------------------------

class TensorShape {
 public:
  TensorShape() = default;
  explicit TensorShape(std::vector<int64_t> dims) : dims_(std::move(dims)) {}

  std::vector<int64_t> GetDimSizes() const { return dims_; }
  int32_t GetDims() const { return static_cast<int32_t>(dims_.size()); }
  int64_t GetDimSize(int32_t index) const {
    return index >= 0 && index < GetDims() ? dims_[static_cast<std::size_t>(index)] : 0;
  }
  int64_t NumElements() const {
    int64_t count = 1;
    for (const int64_t dim : dims_) count *= dim;
    return count;
  }
  Format GetFormat() const { return FORMAT_ND; }
  void SetFormat(Format) {}
  bool GetUnknownRank() const { return false; }
  void SetUnknownRank(bool) {}
  void SetDimSizes(const std::vector<int64_t>& dims) {
    dims_ = dims;
    changed_ = true;
  }
  bool Changed() const { return changed_; }

 private:
  std::vector<int64_t> dims_;
  bool changed_ = false;
};

class Tensor {
 public:
  explicit Tensor(const NpuOppTensor& plain)
      : plain_(plain),
        shape_(std::make_shared<TensorShape>(std::vector<int64_t>(plain.dims, plain.dims + plain.rank))) {}

  std::shared_ptr<TensorShape> GetTensorShape() const { return shape_; }
  bool SetTensorShape(const TensorShape* shape) {
    shape_->SetDimSizes(shape->GetDimSizes());
    return true;
  }
  DataType GetDataType() const { return static_cast<DataType>(plain_.dtype); }
  void* GetData() const { return plain_.data; }
  uint64_t GetDataSize() const { return plain_.nbytes; }
  int64_t NumElements() const { return shape_->NumElements(); }
  int64_t CalcDataSizeByShape() const { return NumElements() * GetSizeByDataType(GetDataType()); }
  template <class T>
  T* Data() const {
    return static_cast<T*>(plain_.data);
  }

 private:
  NpuOppTensor plain_;
  std::shared_ptr<TensorShape> shape_;
};

class AttrValue {
 public:
  explicit AttrValue(const NpuOppAttr& plain) : plain_(plain) {}

  int64_t GetInt() const { return plain_.kind == NPU_OPP_FLOAT ? static_cast<int64_t>(real(0)) : integer(0); }
  float GetFloat() const { return static_cast<float>(plain_.kind == NPU_OPP_FLOAT ? real(0) : integer(0)); }
  bool GetBool() const { return integer(0) != 0; }
  std::string GetString() const { return plain_.kind == NPU_OPP_STRING ? text(0) : ""; }
  DataType GetDataType() const { return static_cast<DataType>(GetInt()); }
  std::vector<int64_t> GetListInt() const { return list<int64_t>(&AttrValue::integer, NPU_OPP_INTS); }
  std::vector<bool> GetListBool() const { return list<bool>(&AttrValue::integer, NPU_OPP_INTS); }
  std::vector<std::string> GetListString() const {
    return list<std::string>(&AttrValue::text, NPU_OPP_STRINGS);
  }
  std::vector<float> GetListFloat() const {
    if (plain_.kind == NPU_OPP_INTS) return list<float>(&AttrValue::integer, NPU_OPP_INTS);
    return list<float>(&AttrValue::real, NPU_OPP_FLOATS);
  }
  int64_t ListIntSize() const { return plain_.kind == NPU_OPP_INTS ? plain_.count : 0; }

 private:
  int64_t integer(int64_t i) const { return static_cast<const int64_t*>(plain_.values)[i]; }
  double real(int64_t i) const { return static_cast<const double*>(plain_.values)[i]; }
  std::string text(int64_t i) const { return static_cast<const char* const*>(plain_.values)[i]; }
  template <class T, class U>
  std::vector<T> list(U (AttrValue::*read)(int64_t) const, int32_t kind) const {
    std::vector<T> values;
    for (int64_t i = 0; plain_.kind == kind && i < plain_.count; ++i) {
      values.push_back(static_cast<T>((this->*read)(i)));
    }
    return values;
  }

  NpuOppAttr plain_;
};

// -- a call
// -----------------------------------------------------------------------------------------------------------

class CpuKernelContext {
 public:
  CpuKernelContext(NpuOppCall& call, const char* type) : call_(call), type_(type) {
    for (uint64_t i = 0; i < call.num_inputs; ++i) {
      const bool there = call.inputs[i].data != nullptr || call.inputs[i].dims != nullptr;
      inputs_.push_back(there ? std::make_unique<Tensor>(call.inputs[i]) : nullptr);
    }
    for (uint64_t i = 0; i < call.num_outputs; ++i)
      outputs_.push_back(std::make_unique<Tensor>(call.outputs[i]));
    for (uint64_t i = 0; i < call.num_attrs; ++i) {
      attrs_.emplace_back(call.attrs[i].name, std::make_unique<AttrValue>(call.attrs[i]));
    }
  }

  std::string GetOpType() const { return type_; }
  // nullptr for an optional input that was left out, and beyond the last one.
  Tensor* Input(uint32_t index) const { return index < inputs_.size() ? inputs_[index].get() : nullptr; }
  Tensor* Output(uint32_t index) const { return index < outputs_.size() ? outputs_[index].get() : nullptr; }
  // nullptr when there is no such attribute.
  AttrValue* GetAttr(const std::string& name) const {
    for (const auto& [known, value] : attrs_) {
      if (known == name) return value.get();
    }
    return nullptr;
  }
  uint32_t GetInputsSize() const { return static_cast<uint32_t>(inputs_.size()); }
  uint32_t GetOutputsSize() const { return static_cast<uint32_t>(outputs_.size()); }
  NpuOppCall& Call() const { return call_; }

 private:
  NpuOppCall& call_;
  std::string type_;
  std::vector<std::unique_ptr<Tensor>> inputs_, outputs_;
  std::vector<std::pair<std::string, std::unique_ptr<AttrValue>>> attrs_;
};

class CpuKernel {
 public:
  virtual ~CpuKernel() = default;
  virtual uint32_t Compute(CpuKernelContext& ctx) = 0;
};

// -- messages
// ---------------------------------------------------------------------------------------------------------

// What the kernel said last about an error; it becomes part of the exception that the user sees.
inline std::string& LastMessage() {
  static thread_local std::string text;
  return text;
}

inline void Log(bool error, const char* format, ...) __attribute__((format(printf, 2, 3)));
inline void Log(bool error, const char* format, ...) {
  char text[900];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (error) LastMessage() = text;
  if (std::getenv("NPU_OPP_LOG")) std::fprintf(stderr, "%s\n", text);
}

// -- helpers
// ----------------------------------------------------------------------------------------------------------

class CpuKernelUtils {
 public:
  static uint32_t GetCPUNum(const CpuKernelContext& ctx) { return static_cast<uint32_t>(ctx.Call().threads); }

  // Calls work(begin, end) on disjoint parts of [0, total), none shorter than `per_unit`.
  static uint32_t ParallelFor(const CpuKernelContext& ctx, int64_t total, int64_t per_unit,
                              const std::function<void(int64_t, int64_t)>& work) {
    Shard shard{&work, {}, {}};
    ctx.Call().parallel_for(ctx.Call().runtime, total, per_unit, &Shard::Run, &shard);
    if (!shard.failure.empty()) {
      LastMessage() = shard.failure;
      return KERNEL_STATUS_SHARDER_ERROR;
    }
    return KERNEL_STATUS_OK;
  }

 private:
  struct Shard {
    const std::function<void(int64_t, int64_t)>* work;
    std::string failure;
    std::mutex lock;

    static void Run(void* self, int64_t begin, int64_t end) {
      Shard& shard = *static_cast<Shard*>(self);
      try {
        (*shard.work)(begin, end);
      } catch (const std::exception& error) {
        shard.Fail(error.what());
      } catch (...) {
        shard.Fail("an unknown exception");
      }
    }
    void Fail(const char* what) {
      const std::lock_guard<std::mutex> guard(lock);
      failure = what;
    }
  };
};

// Checks the numbers of operands and that the attributes are there.
inline uint32_t NormalCheck(const CpuKernelContext& ctx, uint32_t inputs, uint32_t outputs,
                            const std::vector<std::string>& attrs = {}) {
  if (ctx.GetInputsSize() < inputs || ctx.GetOutputsSize() < outputs) {
    Log(true, "%s takes %u inputs and %u outputs, given %u and %u", ctx.GetOpType().c_str(), inputs, outputs,
        ctx.GetInputsSize(), ctx.GetOutputsSize());
    return KERNEL_STATUS_PARAM_INVALID;
  }
  for (const std::string& name : attrs) {
    if (!ctx.GetAttr(name)) {
      Log(true, "%s has no attribute %s", ctx.GetOpType().c_str(), name.c_str());
      return KERNEL_STATUS_PARAM_INVALID;
    }
  }
  return KERNEL_STATUS_OK;
}

// -- registration
// -----------------------------------------------------------------------------------------------------

struct KernelEntry {
  std::string type;
  std::unique_ptr<CpuKernel> (*make)();
};

inline std::vector<KernelEntry>& KernelEntries() {
  static std::vector<KernelEntry> entries;
  return entries;
}

inline bool RegisterCpuKernel(const char* type, std::unique_ptr<CpuKernel> (*make)()) {
  KernelEntries().push_back({type, make});
  return true;
}

}  // namespace aicpu

#define REGISTER_CPU_KERNEL(type, clazz)                                 \
  static const bool npu_registered_##clazz = ::aicpu::RegisterCpuKernel( \
      type, []() -> std::unique_ptr<::aicpu::CpuKernel> { return std::make_unique<clazz>(); })
#define REGISTER_MS_CPU_KERNEL REGISTER_CPU_KERNEL

#define KERNEL_LOG_ERROR(...) ::aicpu::Log(true, __VA_ARGS__)
#define KERNEL_LOG_EVENT(...) ::aicpu::Log(false, __VA_ARGS__)
#define KERNEL_LOG_WARN(...) ::aicpu::Log(false, __VA_ARGS__)
#define KERNEL_LOG_INFO(...) ::aicpu::Log(false, __VA_ARGS__)
#define KERNEL_LOG_DEBUG(...) ::aicpu::Log(false, __VA_ARGS__)
#define CUST_KERNEL_LOG_ERROR(ctx, ...) ::aicpu::Log(true, __VA_ARGS__)
#define CUST_KERNEL_LOG_INFO(ctx, ...) ::aicpu::Log(false, __VA_ARGS__)

#define KERNEL_CHECK_NULLPTR(value, status, ...) \
  if ((value) == nullptr) {                      \
    KERNEL_LOG_ERROR(__VA_ARGS__);               \
    return status;                               \
  }
#define KERNEL_CHECK_FALSE(condition, status, ...) \
  if (!(condition)) {                              \
    KERNEL_LOG_ERROR(__VA_ARGS__);                 \
    return status;                                 \
  }
#define KERNEL_CHECK_FALSE_VOID(condition, ...) \
  if (!(condition)) {                           \
    KERNEL_LOG_ERROR(__VA_ARGS__);              \
    return;                                     \
  }
#define KERNEL_HANDLE_ERROR(expression, ...)                             \
  do {                                                                   \
    const uint32_t npu_status = (expression);                            \
    if (npu_status != ::aicpu::KERNEL_STATUS_OK) {                       \
      if (::aicpu::LastMessage().empty()) KERNEL_LOG_ERROR(__VA_ARGS__); \
      return npu_status;                                                 \
    }                                                                    \
  } while (0)
