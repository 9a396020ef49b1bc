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
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "npu_opp_abi.h"

namespace ge {

// Operator projects write these names of the standard library without their namespace.
using std::map;
using std::pair;
using std::set;
using std::shared_ptr;
using std::string;
using std::to_string;
using std::unordered_map;
using std::vector;

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

enum Format {
  FORMAT_NCHW = 0,
  FORMAT_NHWC = 1,
  FORMAT_ND = 2,
  FORMAT_NC1HWC0 = 3,
  FORMAT_FRACTAL_Z = 4,
  FORMAT_HWCN = 16,
  FORMAT_NDHWC = 27,
  FORMAT_FRACTAL_NZ = 29,
  FORMAT_NCDHW = 30,
  FORMAT_DHWCN = 32,
  FORMAT_RESERVED = 40
};

// Dimensions, and a number of dimensions, that are not known.
constexpr int64_t UNKNOWN_DIM = -1;
constexpr int64_t UNKNOWN_DIM_NUM = -2;
constexpr std::size_t UNKNOWN_DIM_SIZE = 1;
inline const std::vector<int64_t> UNKNOWN_SHAPE = {-1};
inline const std::vector<int64_t> UNKNOWN_RANK = {-2};

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
  std::size_t GetLength() const { return text_.size(); }
  bool operator==(const AscendString& other) const { return text_ == other.text_; }
  bool operator!=(const AscendString& other) const { return text_ != other.text_; }
  bool operator<(const AscendString& other) const { return text_ < other.text_; }

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

  std::string GetName() const { return name_; }
  void SetName(const std::string& name) { name_ = name; }

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
  std::string name_;
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

// The value of an attribute: a number, a text, or a list of either.
struct Attribute {
  bool list = false;
  std::vector<int64_t> whole;
  std::vector<double> real;
  std::vector<std::string> text;

  Attribute() = default;
  explicit Attribute(const NpuOppAttr& plain) : list(plain.kind >= NPU_OPP_INTS) {
    const bool reals = plain.kind == NPU_OPP_FLOAT || plain.kind == NPU_OPP_FLOATS;
    const bool texts = plain.kind == NPU_OPP_STRING || plain.kind == NPU_OPP_STRINGS;
    for (int64_t i = 0; i < plain.count; ++i) {
      if (reals)
        real.push_back(static_cast<const double*>(plain.values)[i]);
      else if (texts)
        text.push_back(static_cast<const char* const*>(plain.values)[i]);
      else
        whole.push_back(static_cast<const int64_t*>(plain.values)[i]);
    }
  }
  std::size_t size() const { return whole.size() + real.size() + text.size(); }

  void Add(const char* value) { text.emplace_back(value); }
  void Add(const std::string& value) { text.push_back(value); }
  void Add(const AscendString& value) { text.emplace_back(value.GetString()); }
  template <class T, std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>, int> = 0>
  void Add(T value) {
    if constexpr (std::is_floating_point_v<T>)
      real.push_back(static_cast<double>(value));
    else
      whole.push_back(static_cast<int64_t>(value));
  }

  bool Read(std::size_t i, std::string& value) const {
    if (i < text.size()) value = text[i];
    return i < text.size();
  }
  bool Read(std::size_t i, AscendString& value) const {
    if (i < text.size()) value = AscendString(text[i].c_str());
    return i < text.size();
  }
  template <class T, std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>, int> = 0>
  bool Read(std::size_t i, T& value) const {
    if constexpr (!std::is_floating_point_v<T>) {
      if (!real.empty()) return false;
    } else if (i < real.size()) {
      value = static_cast<T>(real[i]);
    }
    if (i < whole.size()) value = static_cast<T>(whole[i]);
    return i < size() && text.empty();
  }
};

// An operator's node: the tensors and attributes that it has, and the descriptions that it gets.
class Operator {
 public:
  Operator() = default;
  explicit Operator(std::string type) : type_(std::move(type)), name_(type_) {}
  Operator(std::string type, const NpuOppInfer& question)
      : type_(std::move(type)), name_(type_), question_(&question) {
    for (uint64_t i = 0; i < question.num_outputs; ++i)
      outputs_.emplace_back(question.output_names[i], TensorDesc());
    written_.resize(outputs_.size());
    for (uint64_t i = 0; i < question.num_attrs; ++i) Set(question.attrs[i]);
  }

  std::string GetOpType() const { return type_; }
  std::string GetName() const { return name_; }
  graphStatus GetName(AscendString& name) const {
    name = AscendString(name_.c_str());
    return GRAPH_SUCCESS;
  }
  std::size_t GetInputsSize() const { return question_ ? question_->num_inputs : 0; }
  std::size_t GetOutputsSize() const { return outputs_.size(); }

  TensorDesc GetInputDesc(uint32_t index) const {
    return index < GetInputsSize() ? Describe(question_->inputs[index]) : TensorDesc();
  }
  TensorDesc GetInputDescByName(const char* name) const {
    const NpuOppTensor* found = Input(name);
    return found ? Describe(*found) : TensorDesc();
  }
  TensorDesc GetInputDesc(const std::string& name) const { return GetInputDescByName(name.c_str()); }
  graphStatus TryGetInputDesc(const std::string& name, TensorDesc& desc) const {
    const NpuOppTensor* found = Input(name.c_str());
    if (found) desc = Describe(*found);
    return found ? GRAPH_SUCCESS : GRAPH_FAILED;
  }
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
    const auto found = attrs_.find(name);
    return found != attrs_.end() && found->second.Read(0, value) ? GRAPH_SUCCESS : GRAPH_FAILED;
  }
  template <class T>
  graphStatus GetAttr(const std::string& name, std::vector<T>& values) const {
    const auto found = attrs_.find(name);
    if (found == attrs_.end() || !found->second.list) return GRAPH_FAILED;
    values.clear();
    for (std::size_t i = 0; i < found->second.size(); ++i) {
      T value{};
      if (!found->second.Read(i, value)) return GRAPH_FAILED;
      values.push_back(value);
    }
    return GRAPH_SUCCESS;
  }
  template <class T>
  Operator& SetAttr(const std::string& name, const T& value) {
    Attribute made;
    made.Add(value);
    attrs_[name] = std::move(made);
    return *this;
  }
  template <class T>
  Operator& SetAttr(const std::string& name, const std::vector<T>& values) {
    Attribute made;
    made.list = true;
    for (const auto& value : values) made.Add(static_cast<const T&>(value));
    attrs_[name] = std::move(made);
    return *this;
  }

  // For the entry points.
  void Set(const NpuOppAttr& attr) { attrs_[attr.name] = Attribute(attr); }
  void SetName(const std::string& name) { name_ = name; }
  const std::map<std::string, Attribute>& Attributes() const { return attrs_; }
  bool Written(std::size_t output) const { return written_[output]; }

 private:
  static TensorDesc Describe(const NpuOppTensor& plain) {
    const std::size_t rank = plain.rank > 0 ? static_cast<std::size_t>(plain.rank) : 0;
    return TensorDesc(Shape({plain.dims, plain.dims + rank}), FORMAT_ND, static_cast<DataType>(plain.dtype));
  }
  const NpuOppTensor* Input(const char* name) const {
    for (uint64_t i = 0; i < GetInputsSize(); ++i) {
      if (std::string(question_->input_names[i]) == name && question_->inputs[i].rank >= 0)
        return &question_->inputs[i];
    }
    return nullptr;
  }

  std::string type_, name_;
  const NpuOppInfer* question_ = nullptr;
  std::vector<std::pair<std::string, TensorDesc>> outputs_;
  std::vector<char> written_;
  std::map<std::string, Attribute> attrs_;
};

// How projects write the name of a node in their messages.
inline std::string TbeGetName(const Operator& op) { return op.GetName(); }

using InferFunc = std::function<graphStatus(Operator&)>;

// A function of one operator's own class works on a copy, whose results are taken over.
template <class T>
InferFunc OfAny(graphStatus (*function)(T&)) {
  return [function](Operator& op) {
    T typed{op};
    const graphStatus status = function(typed);
    op = typed;
    return status;
  };
}
inline InferFunc OfAny(graphStatus (*function)(Operator&)) { return function; }
inline InferFunc OfAny(InferFunc function) { return function; }

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

// What a declaration is chained to; it is read as text when the project is built.
struct Declaration {
  Declaration Ignored() const { return *this; }
};

}  // namespace ge

// A declaration becomes a class with one function for each port and attribute. Every macro ends the function
// that the one before began with `Declaration()`, so that the dots between them call a member of it.
#define REG_OP(type)                                                    \
  namespace op {                                                        \
  struct type : ::ge::Operator {                                        \
    type() : ::ge::Operator(#type) {}                                   \
    explicit type(const ::ge::Operator& node) : ::ge::Operator(node) {} \
    static void npu_declared() {                                        \
      ::ge::Declaration()
#define NPU_OPP_INPUT(name)                                                            \
  Ignored();                                                                           \
  }                                                                                    \
  ::ge::TensorDesc get_input_desc_##name() const { return GetInputDescByName(#name); } \
  ::ge::graphStatus update_input_desc_##name(const ::ge::TensorDesc& desc) {           \
    return UpdateInputDesc(#name, desc);                                               \
  }                                                                                    \
  static void npu_input_##name() {                                                     \
    ::ge::Declaration()
#define NPU_OPP_OUTPUT(name)                                                             \
  Ignored();                                                                             \
  }                                                                                      \
  ::ge::TensorDesc get_output_desc_##name() const { return GetOutputDescByName(#name); } \
  ::ge::graphStatus update_output_desc_##name(const ::ge::TensorDesc& desc) {            \
    return UpdateOutputDesc(#name, desc);                                                \
  }                                                                                      \
  static void npu_output_##name() {                                                      \
    ::ge::Declaration()
#define NPU_OPP_ATTR(name, kind)              \
  Ignored();                                  \
  }                                           \
  ::ge::kinds::kind get_attr_##name() const { \
    ::ge::kinds::kind value{};                \
    GetAttr(#name, value);                    \
    return value;                             \
  }                                           \
  static void npu_attr_##name() {             \
    ::ge::Declaration()
#define INPUT(name, ...) NPU_OPP_INPUT(name)
#define OPTIONAL_INPUT(name, ...) NPU_OPP_INPUT(name)
#define DYNAMIC_INPUT(name, ...) NPU_OPP_INPUT(name)
#define OUTPUT(name, ...) NPU_OPP_OUTPUT(name)
#define DYNAMIC_OUTPUT(name, ...) NPU_OPP_OUTPUT(name)
#define ATTR(name, kind, ...) NPU_OPP_ATTR(name, kind)
#define REQUIRED_ATTR(name, kind) NPU_OPP_ATTR(name, kind)
#define GRAPH(name) Ignored()
#define DYNAMIC_GRAPH(name) Ignored()
#define DATATYPE(...) Ignored()
#define INFER_SHAPE_AND_TYPE() Ignored()
#define OP_END_FACTORY_REG(type) \
  Ignored();                     \
  }                              \
  }                              \
  ;                              \
  }

namespace ge {
namespace kinds {  // the types of attributes under the names that declarations use
using Int = int64_t;
using Float = float;
using Bool = bool;
using String = std::string;
using Type = DataType;
using Bytes = std::string;
using ListInt = std::vector<int64_t>;
using ListFloat = std::vector<float>;
using ListBool = std::vector<bool>;
using ListString = std::vector<std::string>;
using ListType = std::vector<DataType>;
}  // namespace kinds
}  // namespace ge

#define IMPLEMT_COMMON_INFERFUNC(name) static ::ge::graphStatus name([[maybe_unused]] ::ge::Operator& op)
#define IMPLEMT_INFERFUNC(type, name) static ::ge::graphStatus name([[maybe_unused]] op::type& op)
#define IMPLEMT_VERIFIER(type, name) static ::ge::graphStatus name([[maybe_unused]] op::type& op)
#define COMMON_INFER_FUNC_REG(type, name) \
  static const bool npu_infer_##type = ::ge::RegisterInfer(#type, ::ge::OfAny(name))
#define INFER_FUNC_REG(type, name) COMMON_INFER_FUNC_REG(type, name)
#define VERIFY_FUNC_REG(type, name) \
  static const bool npu_verify_##type = ::ge::RegisterVerify(#type, ::ge::OfAny(name))
#define ELMTWISE_INFER_SHAPEANDTYPE(input, output) ::ge::SameAs(input, output)
#define BROADCAST_INFER(left, right, output) ::ge::Broadcast(left, right, output)

// The same under the names of projects that extend MindSpore.
#define REG_CUST_OP REG_OP
#define CUST_OP_END_FACTORY_REG OP_END_FACTORY_REG
#define CUST_IMPLEMT_INFERFUNC IMPLEMT_INFERFUNC
#define CUST_IMPLEMT_VERIFIER IMPLEMT_VERIFIER
#define CUST_COMMON_INFER_FUNC_REG COMMON_INFER_FUNC_REG
#define CUST_INFER_FUNC_REG INFER_FUNC_REG
#define CUST_VERIFY_FUNC_REG VERIFY_FUNC_REG

#define OP_LOGE(op, ...) ::ge::LogError(__VA_ARGS__)
#define OP_LOGW(op, ...) static_cast<void>(0)
#define OP_LOGI(op, ...) static_cast<void>(0)
#define OP_LOGD(op, ...) static_cast<void>(0)
