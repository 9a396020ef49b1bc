// The entry point of parse functions; compiled into libraries of projects that have some in C++.
#include <algorithm>
#include <cstring>
#include <exception>

#include "op_plugin.h"

namespace {

const domi::OpRegistrationData* Find(const NpuOppParse& question) {
  const bool onnx = std::string(question.framework) == "onnx";
  for (const auto& plugin : domi::AllPlugins()) {
    if (plugin.framework != (onnx ? domi::ONNX : domi::TENSORFLOW)) continue;
    if (std::find(plugin.names.begin(), plugin.names.end(), question.type) != plugin.names.end())
      return &plugin;
  }
  return nullptr;
}

uint32_t Parse(const domi::OpRegistrationData& plugin, const NpuOppParse& question, ge::Operator& op) {
  if (plugin.parse_by_operator) {
    ge::Operator source{std::string(question.type)};
    source.SetName(question.name);
    for (uint64_t i = 0; i < question.num_attrs; ++i) source.Set(question.attrs[i]);
    return plugin.parse_by_operator(source, op);
  }
  if (plugin.framework == domi::ONNX) {
    const ge::onnx::NodeProto node(question);
    return plugin.parse(&node, op);
  }
  const domi::tensorflow::NodeDef node(question);
  return plugin.parse(&node, op);
}

// Hands one attribute to the caller.
void Tell(const NpuOppParse& question, const std::string& name, const ge::Attribute& value) {
  NpuOppAttr plain{name.c_str(), NPU_OPP_INT, static_cast<int64_t>(value.size()), value.whole.data()};
  std::vector<const char*> texts;
  if (!value.real.empty()) {
    plain.kind = NPU_OPP_FLOAT;
    plain.values = value.real.data();
  } else if (!value.text.empty()) {
    for (const auto& text : value.text) texts.push_back(text.c_str());
    plain.kind = NPU_OPP_STRING;
    plain.values = texts.data();
  }
  if (value.list) plain.kind += NPU_OPP_INTS - NPU_OPP_INT;
  question.set_attr(question.sink, &plain);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) uint32_t npu_opp_parse(NpuOppParse* question) {
  ge::LastMessage().clear();
  const domi::OpRegistrationData* plugin = Find(*question);
  if (!plugin || !(plugin->parse || plugin->parse_by_operator)) return 2;
  uint32_t status = 1;
  domi::Current() = question;
  try {
    ge::Operator op{plugin->type};
    op.SetName(question->name);
    if (Parse(*plugin, *question, op) == domi::SUCCESS) {
      for (const auto& [name, value] : op.Attributes()) Tell(*question, name, value);
      status = 0;
    }
  } catch (const std::exception& error) {
    ge::LastMessage() = std::string("it threw ") + error.what();
  }
  domi::Current() = nullptr;
  if (status) {
    const std::string& text = ge::LastMessage();
    const std::size_t size = std::min<std::size_t>(text.size(), question->message_size);
    std::memcpy(question->message, text.data(), size);
    question->message[size] = 0;
  }
  return status;
}
