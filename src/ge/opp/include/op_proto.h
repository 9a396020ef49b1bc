// Prototypes of custom operators in C++: REG_OP declarations, and inference and verification functions over
// names.
//
//   IMPLEMT_COMMON_INFERFUNC(SwooshInferShape) {
//     ge::TensorDesc desc = op.GetInputDescByName("x");
//     return op.UpdateOutputDesc("y", desc);
//   }
//   COMMON_INFER_FUNC_REG(Swoosh, SwooshInferShape);
//
// REG_OP itself is read as text when the project is built; here it only has to compile.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "npu_opp_abi.h"

namespace ge {

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
  DT_BF16 = 27,
  DT_UNDEFINED = 28
};

enum Format { FORMAT_NCHW = 0, FORMAT_NHWC = 1, FORMAT_ND = 2 };

using graphStatus = uint32_t;
constexpr graphStatus GRAPH_SUCCESS = 0;
constexpr graphStatus GRAPH_PARAM_INVALID = 50331649;
constexpr graphStatus GRAPH_FAILED = 0xFFFFFFFF;

// What the functions said last about an error; it becomes part of the exception that the user sees.
inline std::string& LastMessage() {
  static thread_local std::string text;
  return text;
}

class AscendString {
 public:
  AscendString() = default;
  AscendString(const char* text) : text_(text ? text : "") {}
  const char* GetString() const { return text_.c_str(); }

 private:
  std::string text_;
};

class Shape {
 public:
  Shape() = default;
  explicit Shape(std::vector<int64_t> dims) : dims_(std::move(dims)) {}

  std::size_t GetDimNum() const { return dims_.size(); }
  int64_t GetDim(std::size_t index) const { return index < dims_.size() ? dims_[index] : 0; }
  graphStatus SetDim(std::size_t index, int64_t value) {
    if (index >= dims_.size()) return GRAPH_FAILED;
    dims_[index] = value;
    return GRAPH_SUCCESS;
  }
  std::vector<int64_t> GetDims() const { return dims_; }
  int64_t GetShapeSize() const {
    int64_t size = 1;
    for (const int64_t dim : dims_) size *= dim;
    return size;
  }

 private:
  std::vector<int64_t> dims_;
};

class TensorDesc {
 public:
  TensorDesc() = default;
  explicit TensorDesc(Shape shape, Format = FORMAT_ND, DataType type = DT_FLOAT)
      : shape_(std::move(shape)), type_(type) {}

  Shape GetShape() const { return shape_; }
  Shape GetOriginShape() const { return shape_; }
  void SetShape(const Shape& shape) { shape_ = shape; }
  void SetOriginShape(const Shape&) {}
  DataType GetDataType() const { return type_; }
  void SetDataType(DataType type) { type_ = type; }
  Format GetFormat() const { return FORMAT_ND; }
  Format GetOriginFormat() const { return FORMAT_ND; }
  void SetFormat(Format) {}
  void SetOriginFormat(Format) {}
  int64_t GetRealDimCnt() const { return static_cast<int64_t>(shape_.GetDimNum()); }
  void SetRealDimCnt(int64_t) {}
  graphStatus GetShapeRange(std::vector<std::pair<int64_t, int64_t>>& range) const {
    range.clear();
    for (const int64_t dim : shape_.GetDims()) range.emplace_back(dim, dim);
    return GRAPH_SUCCESS;
  }
  graphStatus SetShapeRange(const std::vector<std::pair<int64_t, int64_t>>&) { return GRAPH_SUCCESS; }

 private:
  Shape shape_;
  DataType type_ = DT_FLOAT;
};

// A constant input.
class Tensor {
 public:
  Tensor() = default;
  Tensor(TensorDesc desc, const void* data, std::size_t size)
      : desc_(std::move(desc)), data_(static_cast<const uint8_t*>(data)), size_(size) {}
  const uint8_t* GetData() const { return data_; }
  std::size_t GetSize() const { return size_; }
  TensorDesc GetTensorDesc() const { return desc_; }

 private:
  TensorDesc desc_;
  const uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

class Operator {
 public:
  Operator(std::string type, const NpuOppInfer& question) : type_(std::move(type)), question_(question) {
    for (uint64_t i = 0; i < question.num_outputs; ++i)
      outputs_.emplace_back(question.output_names[i], TensorDesc());
    written_.resize(outputs_.size());
  }

  std::string GetOpType() const { return type_; }
  std::string GetName() const { return type_; }
  std::size_t GetInputsSize() const { return question_.num_inputs; }
  std::size_t GetOutputsSize() const { return outputs_.size(); }

  TensorDesc GetInputDesc(uint32_t index) const {
    return index < question_.num_inputs ? Describe(question_.inputs[index]) : TensorDesc();
  }
  TensorDesc GetInputDescByName(const char* name) const {
    const NpuOppTensor* found = Input(name);
    return found ? Describe(*found) : TensorDesc();
  }
  TensorDesc GetInputDesc(const std::string& name) const { return GetInputDescByName(name.c_str()); }
  TensorDesc GetDynamicInputDesc(const std::string& name, uint32_t index) const {
    return GetInputDesc(name + std::to_string(index));
  }
  int GetDynamicInputNum(const std::string& name) const {
    int count = 0;
    while (Input((name + std::to_string(count)).c_str())) ++count;
    return count;
  }
  graphStatus GetInputConstData(const char* name, Tensor& data) const {
    const NpuOppTensor* found = Input(name);
    if (!found || !found->data) return GRAPH_FAILED;
    data = Tensor(Describe(*found), found->data, found->nbytes);
    return GRAPH_SUCCESS;
  }
  graphStatus GetInputConstData(const std::string& name, Tensor& data) const {
    return GetInputConstData(name.c_str(), data);
  }

  TensorDesc GetOutputDesc(uint32_t index) const {
    return index < outputs_.size() ? outputs_[index].second : TensorDesc();
  }
  TensorDesc GetOutputDescByName(const char* name) const {
    for (const auto& [known, desc] : outputs_) {
      if (known == name) return desc;
    }
    return TensorDesc();
  }
  TensorDesc GetOutputDesc(const std::string& name) const { return GetOutputDescByName(name.c_str()); }
  graphStatus UpdateOutputDesc(const std::string& name, const TensorDesc& desc) {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i].first != name) continue;
      outputs_[i].second = desc;
      written_[i] = true;
      return GRAPH_SUCCESS;
    }
    LastMessage() = type_ + " has no output '" + name + "'";
    return GRAPH_FAILED;
  }
  graphStatus UpdateOutputDesc(uint32_t index, const TensorDesc& desc) {
    return index < outputs_.size() ? UpdateOutputDesc(outputs_[index].first, desc) : GRAPH_FAILED;
  }
  graphStatus UpdateDynamicOutputDesc(const std::string& name, uint32_t index, const TensorDesc& desc) {
    return UpdateOutputDesc(name + std::to_string(index), desc);
  }
  graphStatus UpdateInputDesc(const std::string&, const TensorDesc&) { return GRAPH_SUCCESS; }

  template <class T>
  graphStatus GetAttr(const std::string& name, T& value) const {
    for (uint64_t i = 0; i < question_.num_attrs; ++i) {
      if (name == question_.attrs[i].name) return Read(question_.attrs[i], value);
    }
    return GRAPH_FAILED;
  }

  bool Written(std::size_t output) const { return written_[output]; }

 private:
  static TensorDesc Describe(const NpuOppTensor& plain) {
    const std::size_t rank = plain.rank > 0 ? static_cast<std::size_t>(plain.rank) : 0;
    return TensorDesc(Shape({plain.dims, plain.dims + rank}), FORMAT_ND, static_cast<DataType>(plain.dtype));
  }
  const NpuOppTensor* Input(const char* name) const {
    for (uint64_t i = 0; i < question_.num_inputs; ++i) {
      if (std::string(question_.input_names[i]) == name && question_.inputs[i].rank >= 0)
        return &question_.inputs[i];
    }
    return nullptr;
  }

  static int64_t Integer(const NpuOppAttr& attr, int64_t i) {
    return static_cast<const int64_t*>(attr.values)[i];
  }
  static double Real(const NpuOppAttr& attr, int64_t i) { return static_cast<const double*>(attr.values)[i]; }
  static const char* Text(const NpuOppAttr& attr, int64_t i) {
    return static_cast<const char* const*>(attr.values)[i];
  }
  static graphStatus Read(const NpuOppAttr& attr, int64_t& value) { return Whole(attr, value); }
  static graphStatus Read(const NpuOppAttr& attr, int32_t& value) { return Whole(attr, value); }
  static graphStatus Read(const NpuOppAttr& attr, uint32_t& value) { return Whole(attr, value); }
  static graphStatus Read(const NpuOppAttr& attr, bool& value) { return Whole(attr, value); }
  static graphStatus Read(const NpuOppAttr& attr, DataType& value) {
    int64_t number = 0;
    const graphStatus status = Whole(attr, number);
    if (status == GRAPH_SUCCESS) value = static_cast<DataType>(number);
    return status;
  }
  template <class T>
  static graphStatus Whole(const NpuOppAttr& attr, T& value) {
    if (attr.kind != NPU_OPP_INT && attr.kind != NPU_OPP_BOOL) return GRAPH_FAILED;
    value = static_cast<T>(Integer(attr, 0));
    return GRAPH_SUCCESS;
  }
  static graphStatus Read(const NpuOppAttr& attr, float& value) {
    if (attr.kind != NPU_OPP_FLOAT && attr.kind != NPU_OPP_INT) return GRAPH_FAILED;
    value =
        attr.kind == NPU_OPP_FLOAT ? static_cast<float>(Real(attr, 0)) : static_cast<float>(Integer(attr, 0));
    return GRAPH_SUCCESS;
  }
  static graphStatus Read(const NpuOppAttr& attr, std::string& value) {
    if (attr.kind != NPU_OPP_STRING) return GRAPH_FAILED;
    value = Text(attr, 0);
    return GRAPH_SUCCESS;
  }
  static graphStatus Read(const NpuOppAttr& attr, AscendString& value) {
    if (attr.kind != NPU_OPP_STRING) return GRAPH_FAILED;
    value = AscendString(Text(attr, 0));
    return GRAPH_SUCCESS;
  }
  template <class T>
  static graphStatus Read(const NpuOppAttr& attr, std::vector<T>& values) {
    values.clear();
    for (int64_t i = 0; i < attr.count; ++i) {
      if constexpr (std::is_same_v<T, std::string>) {
        if (attr.kind != NPU_OPP_STRINGS) return GRAPH_FAILED;
        values.push_back(Text(attr, i));
      } else if (attr.kind == NPU_OPP_INTS) {
        values.push_back(static_cast<T>(Integer(attr, i)));
      } else if (attr.kind == NPU_OPP_FLOATS) {
        values.push_back(static_cast<T>(Real(attr, i)));
      } else {
        return GRAPH_FAILED;
      }
    }
    return GRAPH_SUCCESS;
  }

  std::string type_;
  const NpuOppInfer& question_;
  std::vector<std::pair<std::string, TensorDesc>> outputs_;
  std::vector<char> written_;
};

using InferFunc = std::function<graphStatus(Operator&)>;

struct Functions {
  InferFunc infer, verify;
};

inline std::map<std::string, Functions>& AllFunctions() {
  static std::map<std::string, Functions> functions;
  return functions;
}

inline bool RegisterInfer(const char* type, InferFunc function) {
  AllFunctions()[type].infer = std::move(function);
  return true;
}

inline bool RegisterVerify(const char* type, InferFunc function) {
  AllFunctions()[type].verify = std::move(function);
  return true;
}

inline void LogError(const char* format, ...) __attribute__((format(printf, 1, 2)));
inline void LogError(const char* format, ...) {
  char text[900];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  LastMessage() = text;
}

// The outputs' description is an input's.
inline InferFunc SameAs(const char* input, const char* output) {
  return [=](Operator& op) { return op.UpdateOutputDesc(output, op.GetInputDescByName(input)); };
}

// Two inputs broadcast to the output; the element type is the first one's.
inline InferFunc Broadcast(const char* left, const char* right, const char* output) {
  return [=](Operator& op) -> graphStatus {
    const TensorDesc a = op.GetInputDescByName(left), b = op.GetInputDescByName(right);
    std::vector<int64_t> x = a.GetShape().GetDims(), y = b.GetShape().GetDims();
    if (x.size() < y.size()) x.insert(x.begin(), y.size() - x.size(), 1);
    if (y.size() < x.size()) y.insert(y.begin(), x.size() - y.size(), 1);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (x[i] != y[i] && x[i] != 1 && y[i] != 1) {
        LastMessage() = op.GetOpType() + ": inputs do not broadcast";
        return GRAPH_FAILED;
      }
      if (x[i] == 1) x[i] = y[i];
    }
    return op.UpdateOutputDesc(output, TensorDesc(Shape(x), FORMAT_ND, a.GetDataType()));
  };
}

// Takes the place of a declaration that is read as text.
struct Declaration {
  Declaration Ignored() const { return *this; }
};

}  // namespace ge

#define REG_OP(type) static const ::ge::Declaration npu_declared_##type = ::ge::Declaration()
#define INPUT(...) Ignored()
#define OPTIONAL_INPUT(...) Ignored()
#define DYNAMIC_INPUT(...) Ignored()
#define OUTPUT(...) Ignored()
#define DYNAMIC_OUTPUT(...) Ignored()
#define ATTR(...) Ignored()
#define REQUIRED_ATTR(...) Ignored()
#define OP_END_FACTORY_REG(type) Ignored();

#define IMPLEMT_COMMON_INFERFUNC(name) static ::ge::graphStatus name([[maybe_unused]] ::ge::Operator& op)
#define IMPLEMT_INFERFUNC(type, name) static ::ge::graphStatus name([[maybe_unused]] ::ge::Operator& op)
#define IMPLEMT_VERIFIER(type, name) static ::ge::graphStatus name([[maybe_unused]] ::ge::Operator& op)
#define COMMON_INFER_FUNC_REG(type, name) \
  static const bool npu_infer_##type = ::ge::RegisterInfer(#type, name)
#define INFER_FUNC_REG(type, name) static const bool npu_infer_##type = ::ge::RegisterInfer(#type, name)
#define VERIFY_FUNC_REG(type, name) static const bool npu_verify_##type = ::ge::RegisterVerify(#type, name)
#define ELMTWISE_INFER_SHAPEANDTYPE(input, output) ::ge::SameAs(input, output)
#define BROADCAST_INFER(left, right, output) ::ge::Broadcast(left, right, output)

#define OP_LOGE(op, ...) ::ge::LogError(__VA_ARGS__)
#define OP_LOGW(op, ...) static_cast<void>(0)
#define OP_LOGI(op, ...) static_cast<void>(0)
#define OP_LOGD(op, ...) static_cast<void>(0)
