// The entry point of inference functions; compiled into libraries of projects that have some in C++.
#include <algorithm>
#include <cstring>
#include <exception>

#include "op_proto.h"

namespace {

uint32_t Ask(const char* type, const ge::Functions& functions, NpuOppInfer* question) {
  ge::Operator op(type, *question);
  if (functions.verify && functions.verify(op) != ge::GRAPH_SUCCESS) return 1;
  if (!functions.infer) return 2;
  if (functions.infer(op) != ge::GRAPH_SUCCESS) return 1;
  for (uint32_t i = 0; i < op.GetOutputsSize(); ++i) {
    if (!op.Written(i)) continue;  // the caller asks the operator's computation, or reports it
    const ge::TensorDesc desc = op.GetOutputDesc(i);
    const std::vector<int64_t> dims = desc.GetShape().GetDims();
    question->set_output(question->sink, i, desc.GetDataType(), dims.data(),
                         static_cast<int32_t>(dims.size()));
  }
  return 0;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) uint32_t npu_opp_infer(const char* type,
                                                                         NpuOppInfer* question) {
  ge::LastMessage().clear();
  uint32_t status = 1;
  try {
    const auto found = ge::AllFunctions().find(type);
    if (found == ge::AllFunctions().end()) return 2;
    status = Ask(type, found->second, question);
  } catch (const std::exception& error) {
    ge::LastMessage() = std::string("it threw ") + error.what();
  }
  if (status == 1) {
    const std::string& text = ge::LastMessage();
    const std::size_t size = std::min<std::size_t>(text.size(), question->message_size);
    std::memcpy(question->message, text.data(), size);
    question->message[size] = 0;
  }
  return status;
}
