// Plugins of custom operators in C++: how a node of ONNX or TensorFlow gives an operator its attributes.
//
//   Status ParseSwoosh(const Message* op_src, ge::Operator& op_dest) {
//     const auto* node = dynamic_cast<const ge::onnx::NodeProto*>(op_src);
//     for (const auto& attr : node->attribute())
//       if (attr.name() == "steepness") op_dest.SetAttr("beta", attr.f());
//     return SUCCESS;
//   }
//   REGISTER_CUSTOM_OP("Swoosh").FrameworkType(ONNX).OriginOpType("my::1::Swoosh").ParseParamsFn(ParseSwoosh);
//
// Nodes are offered under the names that the code generated from the frameworks' own messages has.
#pragma once

#include <initializer_list>

#include "op_proto.h"

namespace google {
namespace protobuf {
class Message {
 public:
  virtual ~Message() = default;
};
}  // namespace protobuf
}  // namespace google

namespace ge {
namespace onnx {

class AttributeProto {
 public:
  enum AttributeType { UNDEFINED = 0, FLOAT = 1, INT = 2, STRING = 3, FLOATS = 6, INTS = 7, STRINGS = 8 };

  AttributeProto(std::string name, const Attribute& value) : name_(std::move(name)), value_(value) {
    for (const double item : value.real) floats_.push_back(static_cast<float>(item));
  }
  const std::string& name() const { return name_; }
  AttributeType type() const {
    const AttributeType one = !value_.real.empty() ? FLOAT : !value_.text.empty() ? STRING : INT;
    return value_.list ? static_cast<AttributeType>(one + 5) : one;
  }
  float f() const { return floats_.empty() ? 0.0f : floats_[0]; }
  int64_t i() const { return value_.whole.empty() ? 0 : value_.whole[0]; }
  const std::string& s() const {
    static const std::string none;
    return value_.text.empty() ? none : value_.text[0];
  }
  float floats(int i) const { return floats_[static_cast<std::size_t>(i)]; }
  int64_t ints(int i) const { return value_.whole[static_cast<std::size_t>(i)]; }
  const std::string& strings(int i) const { return value_.text[static_cast<std::size_t>(i)]; }
  const std::vector<float>& floats() const { return floats_; }
  const std::vector<int64_t>& ints() const { return value_.whole; }
  const std::vector<std::string>& strings() const { return value_.text; }
  int floats_size() const { return static_cast<int>(floats_.size()); }
  int ints_size() const { return static_cast<int>(value_.whole.size()); }
  int strings_size() const { return static_cast<int>(value_.text.size()); }
  bool has_f() const { return type() == FLOAT; }
  bool has_i() const { return type() == INT; }
  bool has_s() const { return type() == STRING; }

 private:
  std::string name_;
  Attribute value_;
  std::vector<float> floats_;
};

class NodeProto : public google::protobuf::Message {
 public:
  explicit NodeProto(const NpuOppParse& question)
      : name_(question.name),
        type_(question.type),
        inputs_(static_cast<int>(question.num_inputs)),
        outputs_(static_cast<int>(question.num_outputs)) {
    for (uint64_t i = 0; i < question.num_attrs; ++i)
      attributes_.emplace_back(question.attrs[i].name, Attribute(question.attrs[i]));
  }
  const std::string& name() const { return name_; }
  const std::string& op_type() const { return type_; }
  const std::vector<AttributeProto>& attribute() const { return attributes_; }
  const AttributeProto& attribute(int i) const { return attributes_[static_cast<std::size_t>(i)]; }
  int attribute_size() const { return static_cast<int>(attributes_.size()); }
  int input_size() const { return inputs_; }
  int output_size() const { return outputs_; }

 private:
  std::string name_, type_;
  int inputs_, outputs_;
  std::vector<AttributeProto> attributes_;
};

}  // namespace onnx
}  // namespace ge

namespace domi {

using google::protobuf::Message;
using NodeProto = ge::onnx::NodeProto;
using std::map;
using std::pair;
using std::string;
using std::to_string;
using std::vector;
using Status = uint32_t;
constexpr Status SUCCESS = 0;
constexpr Status FAILED = 0xFFFFFFFF;
constexpr Status PARAM_INVALID = 50331649;

enum FrameworkType { CAFFE = 0, MINDSPORE = 1, TENSORFLOW = 3, ANDROID_NN, ONNX, FRAMEWORK_RESERVED };
enum class ImplyType : unsigned int {
  BUILDIN = 0,
  TVM,
  CUSTOM,
  AI_CPU,
  CCE,
  GELOCAL,
  HCCL,
  INVALID = 0xFFFFFFFF
};

namespace tensorflow {

class AttrValue {
 public:
  class ListValue {
   public:
    explicit ListValue(const ge::Attribute& value) : value_(value) {}
    int i_size() const { return static_cast<int>(value_.whole.size()); }
    int f_size() const { return static_cast<int>(value_.real.size()); }
    int s_size() const { return static_cast<int>(value_.text.size()); }
    int64_t i(int n) const { return value_.whole[static_cast<std::size_t>(n)]; }
    bool b(int n) const { return i(n) != 0; }
    float f(int n) const { return static_cast<float>(value_.real[static_cast<std::size_t>(n)]); }
    const std::string& s(int n) const { return value_.text[static_cast<std::size_t>(n)]; }

   private:
    ge::Attribute value_;
  };

  explicit AttrValue(const ge::Attribute& value) : list_(value) {}
  int64_t i() const { return list_.i_size() ? list_.i(0) : 0; }
  bool b() const { return i() != 0; }
  float f() const { return list_.f_size() ? list_.f(0) : 0.0f; }
  std::string s() const { return list_.s_size() ? list_.s(0) : std::string(); }
  const ListValue& list() const { return list_; }

 private:
  ListValue list_;
};

class NodeDef : public Message {
 public:
  explicit NodeDef(const NpuOppParse& question)
      : name_(question.name), type_(question.type), inputs_(static_cast<int>(question.num_inputs)) {
    for (uint64_t i = 0; i < question.num_attrs; ++i)
      attrs_.emplace(question.attrs[i].name, AttrValue(ge::Attribute(question.attrs[i])));
  }
  const std::string& name() const { return name_; }
  const std::string& op() const { return type_; }
  const std::map<std::string, AttrValue>& attr() const { return attrs_; }
  int input_size() const { return inputs_; }

 private:
  std::string name_, type_;
  int inputs_;
  std::map<std::string, AttrValue> attrs_;
};

}  // namespace tensorflow

// The node that is being parsed, for the functions that map attributes of the same name.
inline const NpuOppParse*& Current() {
  static thread_local const NpuOppParse* question = nullptr;
  return question;
}
inline Status AutoMappingFn(const Message*, ge::Operator& op) {
  for (uint64_t i = 0; i < Current()->num_attrs; ++i) op.Set(Current()->attrs[i]);
  return SUCCESS;
}
inline Status AutoMappingByOpFn(const ge::Operator&, ge::Operator& op) { return AutoMappingFn(nullptr, op); }
inline Status AutoMappingFnDynamic(const Message* node, ge::Operator& op,
                                   const std::map<std::string, std::pair<std::string, std::string>>&,
                                   int = -1, int = -1) {
  return AutoMappingFn(node, op);
}

using ParseParamFunc = std::function<Status(const Message*, ge::Operator&)>;
using ParseParamByOpFunc = std::function<Status(const ge::Operator&, ge::Operator&)>;

class OpRegistrationData {
 public:
  explicit OpRegistrationData(std::string type) : type(std::move(type)) {}
  OpRegistrationData& FrameworkType(int value) {
    framework = value;
    return *this;
  }
  OpRegistrationData& OriginOpType(const std::string& name) {
    names.push_back(name);
    return *this;
  }
  OpRegistrationData& OriginOpType(const char* name) { return OriginOpType(std::string(name)); }
  OpRegistrationData& OriginOpType(std::initializer_list<const char*> all) {
    names.insert(names.end(), all.begin(), all.end());
    return *this;
  }
  OpRegistrationData& OriginOpType(std::initializer_list<ge::AscendString> all) {
    for (const auto& name : all) names.emplace_back(name.GetString());
    return *this;
  }
  OpRegistrationData& OriginOpType(const std::vector<std::string>& all) {
    names.insert(names.end(), all.begin(), all.end());
    return *this;
  }
  OpRegistrationData& ParseParamsFn(ParseParamFunc function) {
    parse = std::move(function);
    return *this;
  }
  OpRegistrationData& ParseParamsByOperatorFn(ParseParamByOpFunc function) {
    parse_by_operator = std::move(function);
    return *this;
  }
  OpRegistrationData& ImplyType(domi::ImplyType) { return *this; }

  std::string type;
  int framework = FRAMEWORK_RESERVED;
  std::vector<std::string> names;
  ParseParamFunc parse;
  ParseParamByOpFunc parse_by_operator;
};

inline std::vector<OpRegistrationData>& AllPlugins() {
  static std::vector<OpRegistrationData> plugins;
  return plugins;
}

struct Registered {
  Registered(const OpRegistrationData& data) { AllPlugins().push_back(data); }
};

}  // namespace domi

#define NPU_OPP_JOIN_AGAIN(a, b) a##b
#define NPU_OPP_JOIN(a, b) NPU_OPP_JOIN_AGAIN(a, b)
#define REGISTER_CUSTOM_OP(name) \
  static const ::domi::Registered NPU_OPP_JOIN(npu_plugin_, __COUNTER__) = ::domi::OpRegistrationData(name)
#define ONNX_PLUGIN_LOGE(op, ...) ::ge::LogError(__VA_ARGS__)
#define ONNX_PLUGIN_LOGW(op, ...) static_cast<void>(0)
