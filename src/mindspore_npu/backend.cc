// MindSpore's custom graph back end "npu": each graph of jit(backend="npu") is handed to Python as MINDIR,
// compiled by the Graph Engine and run on the tensors' own memory. A graph that the engine refuses goes to
// MindSpore's back end.
//
// Built against the headers of the installed MindSpore (mindspore_npu/native.py); it links nothing of the
// engine.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/func_graph.h"
#include "ir/graph_utils.h"
#include "ir/scalar.h"
#include "ir/tensor.h"
#include "ir/tensor_new.h"
#include "mindspore/ccsrc/include/runtime/pipeline/pipeline.h"
#include "mindspore/include/custom_backend_api.h"
#include "utils/trace_base.h"

namespace py = pybind11;

namespace mindspore {

// Declared in ir_dump/dump_proto_interface.h, which includes a header that the package does not bring along.
std::string GetBinaryProtoString(const FuncGraphPtr& func_graph, const bool& incremental);

namespace backend {
namespace {

constexpr auto kName = "npu";
constexpr auto kModule = "mindspore_npu.backend";

// A result of the program: its tensor, or the parameter whose memory it takes.
struct Result {
  TypeId type;
  ShapeVector shape;
  int64_t donated;
};

// What the graph returns: a result of the program, a parameter as it is, a constant, or a tuple of these.
struct Returned {
  enum class Kind { kResult, kParameter, kConstant, kTuple } kind;
  size_t index = 0;
  BaseRef constant;
  std::vector<Returned> parts;
};

// A compiled graph. `run` is the engine's program, called with two lists of addresses. `parameters` are
// positions among the graph's parameters, in the order of the program's inputs.
struct Compiled {
  py::object run;
  std::vector<size_t> parameters;
  std::vector<Result> results;
  Returned returned;
};

struct Fallback {
  BackendType type;
  BackendGraphId id;
};

BaseRef Constant(const py::handle& value) {
  if (py::isinstance<py::bool_>(value)) {
    return MakeValue(value.cast<bool>());
  }
  if (py::isinstance<py::int_>(value)) {
    return MakeValue(value.cast<int64_t>());
  }
  if (py::isinstance<py::float_>(value)) {
    return MakeValue(value.cast<float>());
  }
  if (py::isinstance<py::str>(value)) {
    return MakeValue(value.cast<std::string>());
  }
  return kNone;
}

// ("result", n), ("parameter", n), ("constant", value) or ("tuple", parts).
Returned ToReturned(const py::handle& form) {
  const auto pair = form.cast<py::tuple>();
  const auto kind = pair[0].cast<std::string>();
  if (kind == "result") {
    return {Returned::Kind::kResult, pair[1].cast<size_t>(), {}, {}};
  }
  if (kind == "parameter") {
    return {Returned::Kind::kParameter, pair[1].cast<size_t>(), {}, {}};
  }
  if (kind == "constant") {
    return {Returned::Kind::kConstant, 0, Constant(pair[1]), {}};
  }
  Returned tuple{Returned::Kind::kTuple, 0, {}, {}};
  for (const auto& part : pair[1].cast<py::tuple>()) {
    tuple.parts.push_back(ToReturned(part));
  }
  return tuple;
}

BaseRef ToValue(const Returned& returned, const std::vector<tensor::TensorPtr>& results,
                const VectorRef& inputs) {
  switch (returned.kind) {
    case Returned::Kind::kResult:
      return results[returned.index];
    case Returned::Kind::kParameter:
      return inputs[returned.index];
    case Returned::Kind::kConstant:
      return returned.constant;
    case Returned::Kind::kTuple:
      break;
  }
  VectorRef tuple;
  for (const auto& part : returned.parts) {
    tuple.push_back(ToValue(part, results, inputs));
  }
  return tuple;
}

// The tensor of an argument, contiguous; numbers become tensors without axes.
tensor::TensorPtr ToTensor(const BaseRef& argument) {
  if (utils::isa<tensor::TensorPtr>(argument)) {
    return utils::cast<tensor::TensorPtr>(argument);
  }
  if (utils::isa<ScalarPtr>(argument)) {
    const auto scalar = utils::cast<ScalarPtr>(argument);
    if (scalar->isa<BoolImm>()) {
      return tensor::from_scalar(GetValue<bool>(scalar));
    }
    if (scalar->isa<Int64Imm>()) {
      return tensor::from_scalar(GetValue<int64_t>(scalar));
    }
    if (scalar->isa<FP32Imm>()) {
      return tensor::from_scalar(GetValue<float>(scalar));
    }
  }
  return nullptr;
}

class NpuBackend : public BackendBase {
 public:
  BackendGraphId Build(const FuncGraphPtr& graph, const BackendJitConfig& config) override {
    std::shared_ptr<Compiled> compiled;
    {
      py::gil_scoped_acquire gil;
      compiled = Compile(graph);
    }
    const auto id = next_++;
    if (compiled != nullptr) {
      const std::lock_guard<std::mutex> lock(mutex_);
      compiled_[id] = compiled;
      return id;
    }
    const auto [type, inner] = BackendManager::GetInstance().Build(graph, config, kMSBackendName);
    const std::lock_guard<std::mutex> lock(mutex_);
    fallbacks_[id] = {type, inner};
    return id;
  }

  RunningStatus Run(BackendGraphId id, const VectorRef& inputs, VectorRef* outputs) override {
    std::shared_ptr<Compiled> compiled;
    std::optional<Fallback> fallback;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (const auto found = compiled_.find(id); found != compiled_.end()) {
        compiled = found->second;
      } else if (const auto other = fallbacks_.find(id); other != fallbacks_.end()) {
        fallback = other->second;
      }
    }
    if (fallback.has_value()) {
      return BackendManager::GetInstance().Run(fallback->type, fallback->id, inputs, outputs);
    }
    if (compiled == nullptr) {
      return kRunningFailure;
    }
    Wait();
    py::gil_scoped_acquire gil;
    RunCompiled(*compiled, inputs, outputs);
    return kRunningSuccess;
  }

  void ClearGraph(BackendGraphId id) override {
    py::gil_scoped_acquire gil;
    const std::lock_guard<std::mutex> lock(mutex_);
    compiled_.erase(id);
    if (const auto found = fallbacks_.find(id); found != fallbacks_.end()) {
      BackendManager::GetInstance().ClearGraph(found->second.type, found->second.id);
      fallbacks_.erase(found);
    }
  }

  void Clear() override {
    // Python may be gone when MindSpore clears its back ends: what it owns is left to the end of the process.
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& item : compiled_) {
      new std::shared_ptr<Compiled>(item.second);
    }
    compiled_.clear();
  }

 private:
  // MindSpore's eager operators run in threads of its own: arguments may not have their values, or their
  // memory, yet.
  static void Wait() {
    std::optional<py::gil_scoped_release> released;  // those threads may call Python
    if (PyGILState_Check() != 0) {
      released.emplace();
    }
    runtime::Pipeline::Get().WaitAll();
  }

  static std::shared_ptr<Compiled> Compile(const FuncGraphPtr& graph) {
    py::list names;
    for (const auto& node : graph->parameters()) {
      names.append(node->cast<ParameterPtr>()->name());
    }
    const auto module = py::module_::import(kModule);
    const py::cpp_function sources([graph](const std::string& name) { return Sources(graph, name); });
    const py::object made =
        module.attr("build")(py::bytes(GetBinaryProtoString(graph, false)), names, sources);
    if (made.is_none()) {
      return nullptr;
    }
    auto compiled = std::make_shared<Compiled>();
    compiled->run = made.attr("run");
    compiled->parameters = made.attr("parameters").cast<std::vector<size_t>>();
    for (const auto& item : made.attr("results").cast<py::list>()) {
      const auto [type, shape, donated] = item.cast<std::tuple<int, std::vector<int64_t>, int64_t>>();
      compiled->results.push_back({static_cast<TypeId>(type), shape, donated});
    }
    compiled->returned = ToReturned(made.attr("returned"));
    return compiled;
  }

  // The source lines of the node with a name, in this graph or in one that it calls.
  static std::vector<std::string> Sources(const FuncGraphPtr& graph, const std::string& name) {
    for (const auto& node : TopoSort(graph->get_return(), SuccDeeperSimple)) {
      if (node->isa<CNode>() && node->fullname_with_scope() == name) {
        return trace::GetSourceLineList(node);
      }
    }
    return {};
  }

  static void RunCompiled(const Compiled& compiled, const VectorRef& inputs, VectorRef* outputs) {
    std::vector<tensor::TensorPtr> held;  // tensors made here live until the program has run
    std::vector<tensor::TensorPtr> results;
    py::list sources;
    py::list targets;
    for (const auto position : compiled.parameters) {
      auto tensor = ToTensor(inputs[position]);
      if (tensor == nullptr) {
        throw py::value_error("argument " + std::to_string(position) +
                              " of the graph is not a tensor: " + inputs[position].ToString());
      }
      if (tensor->storage_info() != nullptr || !tensor->is_contiguous()) {
        tensor = tensor->cpu();
      }
      held.push_back(tensor);
      sources.append(reinterpret_cast<std::uintptr_t>(tensor->data_c()));
    }
    for (const auto& result : compiled.results) {
      const bool fresh = result.donated < 0;
      results.push_back(fresh ? tensor::from_spec_fast(result.type, result.shape, device::DeviceType::kCPU)
                              : held[static_cast<size_t>(result.donated)]);
      targets.append(reinterpret_cast<std::uintptr_t>(results.back()->data_c()));
    }
    compiled.run(sources, targets);
    VectorRef top;
    top.push_back(ToValue(compiled.returned, results, inputs));
    *outputs = top;
  }

  std::mutex mutex_;
  BackendGraphId next_ = 0;
  std::unordered_map<BackendGraphId, std::shared_ptr<Compiled>> compiled_;
  std::unordered_map<BackendGraphId, Fallback> fallbacks_;
};

MS_REGISTER_BACKEND(kName, NpuBackend);

}  // namespace
}  // namespace backend
}  // namespace mindspore
