// The extension module npu_runtime._tensorflow: the TensorFlow device for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/errors.h"
#include "tensorflow/c_api.h"
#include "tensorflow/callbacks.h"
#include "tensorflow/device.h"
#include "tensorflow/kernel.h"
#include "tensorflow/plan.h"
#include "tensorflow/pool.h"
#include "tensorflow/shared_arena.h"
#include "tensorflow/timeline.h"

namespace npu::python {
namespace nb = nanobind;
namespace {

using namespace nb::literals;
using namespace npu::tf;

constexpr const char* kKinds[] = {"tensor", "variable", "host"};

nb::tuple shape_tuple(const Shape& shape) {
  nb::list dims;
  for (const std::int64_t dim : shape.dims()) dims.append(dim);
  return nb::tuple(dims);
}

Shape to_shape(nb::handle sequence) { return Shape(nb::cast<std::vector<std::int64_t>>(sequence)); }

// -- described inputs
// ----------------------------------------------------------------------------------------------

// The value as an array that shares and owns its memory.
nb::object value_of(const Described& self) {
  std::shared_ptr<Storage> storage = self.storage;
  if (self.variable) {
    const Status status;
    const nb::gil_scoped_release unlocked;
    const std::lock_guard lock(self.variable->mutex());
    storage = self.variable->value(status);
  }
  if (!storage) throw InvalidArgument("this input has no value that Python can read");
  auto* held = new std::shared_ptr<Storage>(storage);
  nb::capsule owner(held,
                    [](void* pointer) noexcept { delete static_cast<std::shared_ptr<Storage>*>(pointer); });
  const std::size_t bytes = storage->bytes();
  nb::object raw =
      nb::cast(nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(storage->data(), {bytes}, owner));
  nb::object dtype = nb::module_::import_("npu_runtime").attr("numpy_dtype")(type_name(storage->dtype()));
  return raw.attr("view")(dtype).attr("reshape")(shape_tuple(storage->shape()));
}

std::string repr_of(const Described& self) {
  return std::string("Described(") + kKinds[static_cast<int>(self.kind)] + ", " + type_name(self.dtype) + ")";
}

// -- plans
// ---------------------------------------------------------------------------------------------------------

Port to_port(const std::string& kind, int index) {
  if (kind == "input") return {Port::Kind::Input, index};
  if (kind == "variable") return {Port::Kind::Variable, index};
  if (kind == "output") return {Port::Kind::Output, index};
  if (kind == "random") return {Port::Kind::Random, index};
  throw InvalidArgument("'" + kind + "' is no kind of port: input, variable, output or random");
}

ProgramOutput to_output(nb::handle entry) {
  const auto parts = nb::cast<nb::tuple>(entry);
  if (parts.size() < 4) throw InvalidArgument("a program output is (kind, index, dtype, shape[, aliased])");
  ProgramOutput output;
  output.port = to_port(nb::cast<std::string>(parts[0]), nb::cast<int>(parts[1]));
  output.dtype = type_number(nb::cast<std::string>(parts[2]));
  output.shape = to_shape(parts[3]);
  output.aliased = parts.size() > 4 && nb::cast<bool>(parts[4]);
  return output;
}

std::shared_ptr<Storage> to_constant(nb::handle array) {
  nb::object dense =
      nb::module_::import_("numpy").attr("ascontiguousarray")(array).attr("reshape")(array.attr("shape"));
  Shape shape = to_shape(dense.attr("shape"));
  const auto dtype = nb::cast<std::string>(dense.attr("dtype").attr("name"));
  auto storage = Storage::allocate(npu::Device::get(0), type_number(dtype), shape, "a constant result");
  const auto bytes = nb::cast<nb::bytes>(dense.attr("tobytes")());
  if (bytes.size() != storage->bytes()) throw InvalidArgument("constant of an unexpected size");
  storage->fill(bytes.c_str());
  return storage;
}

OtherResult to_other(int result, nb::handle entry) {
  const auto parts = nb::cast<nb::tuple>(entry);
  OtherResult other;
  other.result = result;
  const auto kind = nb::cast<std::string>(parts[0]);
  if (kind == "constant") {
    other.port.kind = Port::Kind::Constant;
    other.constant = to_constant(parts[1]);
  } else {
    other.port = to_port(kind, nb::cast<int>(parts[1]));
  }
  return other;
}

// Operations hold the generators, not this object: they may be freed without Python's lock.
struct SessionState {
  std::shared_ptr<Generators> generators = std::make_shared<Generators>();
};

using Random = std::tuple<std::string, std::optional<std::uint64_t>, std::uint64_t>;

// Programs of GPUs are Python's. Plans know them by number: plans may be freed without Python's lock, so what
// they no longer need is dropped when it is held next.
class PythonPrograms {
 public:
  static PythonPrograms& get() {
    static auto* programs = new PythonPrograms();
    return *programs;
  }

  std::int64_t add(nb::object program) {
    drop();
    programs_[++last_] = std::move(program);
    return last_;
  }

  nb::object find(std::int64_t number) {
    drop();
    return programs_.at(number);
  }

  void forget(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    unneeded_.push_back(number);
  }

 private:
  void drop() {
    std::vector<std::int64_t> unneeded;
    {
      const std::lock_guard lock(mutex_);
      unneeded.swap(unneeded_);
    }
    for (const std::int64_t number : unneeded) programs_.erase(number);
  }

  std::unordered_map<std::int64_t, nb::object> programs_;  // with the GIL
  std::int64_t last_ = 0;
  std::mutex mutex_;
  std::vector<std::int64_t> unneeded_;
};

class PythonProgram : public GpuProgram {
 public:
  explicit PythonProgram(nb::object program)
      : input_bytes_(nb::cast<std::vector<std::size_t>>(program.attr("input_bytes"))),
        output_bytes_(nb::cast<std::vector<std::size_t>>(program.attr("output_bytes"))),
        number_(PythonPrograms::get().add(std::move(program))) {}
  ~PythonProgram() override { PythonPrograms::get().forget(number_); }

  ShapeReport run(int device, const std::vector<std::uint64_t>& inputs,
                  const std::vector<std::uint64_t>& outputs) override;
  std::size_t input_bytes(std::size_t index) const override { return input_bytes_[index]; }
  std::size_t output_bytes(std::size_t index) const { return output_bytes_[index]; }
  std::size_t input_count() const { return input_bytes_.size(); }
  std::size_t output_count() const { return output_bytes_.size(); }

 private:
  std::vector<std::size_t> input_bytes_, output_bytes_;
  std::int64_t number_;
};

// Parts of a plan: its ports are those of the program.
template <typename AnyProgram>
void check_ports(const FunctionPlan& plan, const AnyProgram& program) {
  if (plan.inputs.size() != program.input_count() || plan.outputs.size() != program.output_count()) {
    throw InvalidArgument("plan " + plan.name + ": the program has " + std::to_string(program.input_count()) +
                          " inputs and " + std::to_string(program.output_count()) + " outputs, the plan " +
                          std::to_string(plan.inputs.size()) + " and " + std::to_string(plan.outputs.size()));
  }
  for (std::size_t i = 0; i < plan.outputs.size(); ++i) {
    const ProgramOutput& output = plan.outputs[i];
    const auto bytes = static_cast<std::size_t>(output.shape.elements()) * type_size(output.dtype);
    if (bytes < program.output_bytes(i)) {
      throw InvalidArgument("plan " + plan.name + ": output " + std::to_string(i) +
                            " is smaller than the program's");
    }
  }
}

void init_plan(FunctionPlan* self, nb::object program, const std::vector<std::pair<std::string, int>>& inputs,
               nb::handle outputs, const nb::dict& others,
               const std::vector<std::pair<int, std::uint64_t>>& bound, std::vector<int> specialised,
               std::vector<int> watched, int patience, const std::vector<Random>& random, std::string name,
               std::int64_t layout) {
  auto plan = std::make_unique<FunctionPlan>();
  if (program.is_none()) throw InvalidArgument("a plan for the NPU needs a program");
  plan->name = name.empty() ? nb::cast<std::string>(program.attr("name")) : std::move(name);
  for (const auto& [kind, index] : inputs) plan->inputs.push_back(to_port(kind, index));
  for (nb::handle entry : outputs) plan->outputs.push_back(to_output(entry));
  for (auto [result, entry] : others) plan->others.push_back(to_other(nb::cast<int>(result), entry));
  for (const auto& [input, version] : bound) plan->bound.push_back({input, version, nullptr});
  for (const auto& [counter, high, step] : random) plan->random.push_back({counter, high, step});
  for (const ProgramOutput& output : plan->outputs) {
    if (output.port.kind != Port::Kind::Random) continue;
    plan->moves_counters = true;
    if (output.port.index < 0 || static_cast<std::size_t>(output.port.index) >= random.size()) {
      throw InvalidArgument("plan " + plan->name + " moves a counter that it does not have");
    }
  }
  if (nb::isinstance<Program>(program)) {
    plan->program = nb::cast<std::shared_ptr<Program>>(program);
    check_ports(*plan, *plan->program);
  } else {
    const auto gpu = std::make_shared<PythonProgram>(std::move(program));
    check_ports(*plan, *gpu);
    plan->gpu = gpu;
  }
  plan->specialised = std::move(specialised);
  plan->watched = std::move(watched);
  plan->patience = patience;
  plan->layout = layout;
  new (self) FunctionPlan(std::move(*plan));
}

using Sources = std::vector<std::tuple<std::string, int, int>>;

// Steps read results of earlier ones.
void check_steps(const FunctionPlan& plan) {
  const auto check = [&](const StepSource& source, std::size_t before) {
    const bool fits =
        source.index >= 0 &&
        (source.step < 0 || (static_cast<std::size_t>(source.step) < before &&
                             source.index < plan.steps[static_cast<std::size_t>(source.step)].results));
    if (!fits) throw InvalidArgument("plan " + plan.name + ": a step reads what no earlier step makes");
  };
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    std::size_t first = i;  // of its stage
    const int stage = plan.steps[i].stage;
    while (stage >= 0 && first > 0 && plan.steps[first - 1].stage == stage) --first;
    for (const StepSource& source : plan.steps[i].inputs) check(source, first);
    if (plan.steps[first].share.has_value() != plan.steps[i].share.has_value()) {
      throw InvalidArgument("plan " + plan.name + ": only some steps of a stage have a share");
    }
    if (!plan.steps[i].share) continue;
    for (const StepSource& source : plan.steps[i].share->inputs) check(source, first);
  }
  for (const StepSource& source : plan.step_results) check(source, plan.steps.size());
}

using OperatorParts = std::tuple<std::string, std::vector<std::pair<std::string, nb::bytes>>,
                                 std::vector<int>, int, std::vector<int>>;

std::shared_ptr<const HostOperator> to_operator(const OperatorParts& parts) {
  const auto& [name, attrs, inputs, made, results] = parts;
  auto found = std::make_shared<HostOperator>();
  found->name = name;
  for (const auto& [attr, value] : attrs)
    found->attrs.emplace_back(attr, std::string(value.c_str(), value.size()));
  found->inputs = inputs;
  found->made = made;
  found->results = results;
  return found;
}

std::shared_ptr<FunctionPlan> host_plan(std::string function, bool escapes, std::vector<int> specialised,
                                        const std::optional<OperatorParts>& alone,
                                        std::vector<std::string> other_npus) {
  auto plan = std::make_shared<FunctionPlan>();
  if (alone) plan->host_operator = to_operator(*alone);
  plan->name = function;
  plan->host_function = std::move(function);
  plan->host_functions = std::move(other_npus);
  plan->escapes = escapes;
  plan->specialised = std::move(specialised);
  return plan;
}

StepSource to_source(const std::tuple<std::string, int, int>& source) {
  const auto& [kind, first, second] = source;
  if (kind == "input") return {-1, first};
  if (kind == "step") return {first, second};
  throw InvalidArgument("'" + kind + "' is no source of a step: input or step");
}

std::vector<StepSource> to_sources(const Sources& sources) {
  std::vector<StepSource> result;
  for (const auto& source : sources) result.push_back(to_source(source));
  return result;
}

using ShareParts = std::tuple<std::string, Sources, std::vector<std::tuple<int, std::vector<int>, bool>>>;

std::optional<StepShare> to_share(const std::optional<ShareParts>& parts) {
  if (!parts) return std::nullopt;
  const auto& [function, inputs, mirrored] = *parts;
  StepShare share{function, to_sources(inputs), {}};
  for (const auto& [own, others, written] : mirrored) share.mirrored.push_back({own, others, written});
  return share;
}

std::shared_ptr<FunctionPlan> steps_plan(
    const std::vector<std::tuple<std::string, Sources, int, int, int, std::optional<ShareParts>>>& steps,
    const Sources& results, std::vector<int> specialised, std::string name) {
  auto plan = std::make_shared<FunctionPlan>();
  plan->name = std::move(name);
  for (const auto& [function, inputs, count, device, stage, share] : steps) {
    plan->steps.push_back({function, to_sources(inputs), count, device, stage, to_share(share)});
  }
  plan->step_results = to_sources(results);
  plan->specialised = std::move(specialised);
  if (plan->steps.empty()) throw InvalidArgument("a plan of steps needs a step");
  check_steps(*plan);
  return plan;
}

const char* kind_of(const FunctionPlan& plan) {
  if (plan.on_npu()) return "npu";
  if (plan.structure.kind == Structure::Kind::Loop) return "loop";
  if (plan.structure.kind == Structure::Kind::Branch) return "branch";
  return plan.steps.empty() ? "host" : "steps";
}

// A loop (condition and body) or a branch over functions, with a number of results.
std::shared_ptr<FunctionPlan> structure_plan(Structure::Kind kind, std::vector<std::string> functions,
                                             nb::list inputs, std::vector<int> results, int made,
                                             std::string name) {
  auto plan = std::make_shared<FunctionPlan>();
  plan->name = std::move(name);
  Structure& structure = plan->structure;
  structure = {kind, std::move(functions), {}, std::move(results), made};
  for (nb::handle entry : inputs) {
    const OtherResult other = to_other(0, entry);
    if (other.port.kind != Port::Kind::Constant && other.port.kind != Port::Kind::Input) {
      throw InvalidArgument("plan " + plan->name + ": an input is neither input nor constant");
    }
    structure.inputs.push_back({other.port.index, other.constant});
  }
  const bool known = std::all_of(structure.results.begin(), structure.results.end(),
                                 [&](int index) { return index >= 0 && index < made; });
  if (!known) throw InvalidArgument("plan " + plan->name + ": a result is not among what it makes");
  const bool complete = !structure.functions.empty() && !structure.inputs.empty();
  if (!complete) throw InvalidArgument("plan " + plan->name + ": nothing to call, or nothing that decides");
  return plan;
}

std::shared_ptr<FunctionPlan> loop_plan(std::string condition, std::string body, nb::list inputs,
                                        std::vector<int> results, std::string name) {
  const auto states = static_cast<int>(inputs.size());
  return structure_plan(Structure::Kind::Loop, {std::move(condition), std::move(body)}, std::move(inputs),
                        std::move(results), states, std::move(name));
}

std::shared_ptr<FunctionPlan> branch_plan(std::vector<std::string> functions, nb::list inputs,
                                          std::vector<int> results, int made, std::string name) {
  return structure_plan(Structure::Kind::Branch, std::move(functions), std::move(inputs), std::move(results),
                        made, std::move(name));
}

// -- callbacks
// -----------------------------------------------------------------------------------------------------

// The status code of an exception: TensorFlow's own if it has one.
int code_of(const nb::python_error& error) {
  nb::object value = nb::borrow(error.value());
  nb::object code = nb::getattr(value, "error_code", nb::none());
  if (PyLong_Check(code.ptr())) return nb::cast<int>(code);
  if (error.matches(PyExc_KeyboardInterrupt)) return kCancelled;
  if (error.matches(PyExc_MemoryError)) return kResourceExhausted;
  if (error.matches(PyExc_NotImplementedError)) return kUnimplemented;
  if (error.matches(PyExc_ValueError) || error.matches(PyExc_TypeError)) return kInvalidArgument;
  return kInternal;
}

// The message of an exception: unchanged for TensorFlow's errors, with the type for others.
std::string text_of(const nb::python_error& error) {
  nb::object value = nb::borrow(error.value());
  nb::object message = nb::getattr(value, "message", nb::none());
  if (PyUnicode_Check(message.ptr())) return nb::cast<std::string>(message);
  const auto type = nb::cast<std::string>(nb::getattr(error.type(), "__name__", nb::str("error")));
  const auto text = nb::cast<std::string>(nb::str(value));
  return text.empty() ? type : type + ": " + text;
}

// A callback on this thread was interrupted: the status says "cancelled", Python is to raise
// KeyboardInterrupt.
thread_local bool interrupted = false;

class PythonCallbacks : public Callbacks {
 public:
  PythonCallbacks(nb::object classify, nb::object op, nb::object function, nb::object part,
                  nb::object part_run, nb::object variable_types, nb::object assign_function,
                  nb::object part_of)
      : classify_(std::move(classify)),
        op_(std::move(op)),
        function_(std::move(function)),
        part_(std::move(part)),
        part_run_(std::move(part_run)),
        variable_types_(std::move(variable_types)),
        assign_function_(std::move(assign_function)),
        part_of_(std::move(part_of)) {}

  std::string assign_function(const std::vector<int>& types) override {
    return guarded([&] { return nb::cast<std::string>(assign_function_(types)); });
  }

  std::vector<int> variable_types(const std::string& function) override {
    return guarded([&] {
      if (variable_types_.is_none()) return std::vector<int>();
      return nb::cast<std::vector<int>>(variable_types_(function));
    });
  }

  OpTraits classify(const std::string& op) override {
    return guarded([&] {
      const auto answer = nb::cast<nb::tuple>(classify_(op));
      return OpTraits{nb::cast<bool>(answer[0]), nb::cast<bool>(answer[1])};
    });
  }

  std::shared_ptr<FunctionPlan> compile_op(const std::string& op, std::string_view attrs,
                                           std::vector<Described> inputs) override {
    return guarded([&] { return to_plan(op_(op, to_bytes(attrs), to_list(std::move(inputs)))); });
  }

  std::shared_ptr<FunctionPlan> compile_function(const std::string& name, std::string_view attrs,
                                                 std::vector<Described> inputs,
                                                 const std::shared_ptr<FunctionPlan>& previous,
                                                 const std::vector<int>& changed) override {
    return guarded([&] {
      return to_plan(function_(name, to_bytes(attrs), to_list(std::move(inputs)), previous, changed));
    });
  }

  std::shared_ptr<FunctionPlan> compile_part(std::int64_t part, std::vector<Described> inputs) override {
    return guarded([&] { return to_plan(part_(part, to_list(std::move(inputs)))); });
  }

  std::int64_t part_of(const std::string& definition, int task) override {
    return guarded([&] {
      if (part_of_.is_none()) throw CallbackError(kUnimplemented, "NpuGraph: parts of other processes");
      return nb::cast<std::int64_t>(part_of_(to_bytes(definition), task));
    });
  }

  std::vector<std::shared_ptr<Storage>> run_part(std::int64_t part, std::vector<Described> inputs) override {
    return guarded([&] {
      if (part_run_.is_none()) throw CallbackError(kUnimplemented, "NpuGraph: no program was made");
      std::vector<std::shared_ptr<Storage>> results;
      for (nb::handle array : part_run_(part, to_list(std::move(inputs))))
        results.push_back(to_constant(array));
      return results;
    });
  }

 private:
  static nb::bytes to_bytes(std::string_view bytes) { return nb::bytes(bytes.data(), bytes.size()); }

  static nb::list to_list(std::vector<Described> inputs) {
    nb::list list;
    for (Described& input : inputs) list.append(nb::cast(std::move(input)));
    return list;
  }

  static std::shared_ptr<FunctionPlan> to_plan(nb::object answer) {
    return answer.is_none() ? nullptr : nb::cast<std::shared_ptr<FunctionPlan>>(answer);
  }

  // Runs with the GIL; converts exceptions to a status.
  template <typename Function>
  static auto guarded(Function function) -> decltype(function()) {
    const nb::gil_scoped_acquire locked;
    try {
      return function();
    } catch (const nb::python_error& error) {
      const int code = code_of(error);
      const std::string text = text_of(error);
      if (error.matches(PyExc_KeyboardInterrupt)) interrupted = true;
      throw CallbackError(code, text);
    } catch (const nb::cast_error& error) {
      throw CallbackError(kInternal,
                          std::string("a callback returned something unexpected: ") + error.what());
    }
  }

  nb::object classify_, op_, function_, part_, part_run_, variable_types_, assign_function_, part_of_;
};

ShapeReport PythonProgram::run(int device, const std::vector<std::uint64_t>& inputs,
                               const std::vector<std::uint64_t>& outputs) {
  const nb::gil_scoped_acquire locked;
  try {
    ShapeReport report;
    const nb::object shapes = PythonPrograms::get().find(number_)(device, inputs, outputs);
    for (const auto& [index, dims] :
         nb::cast<std::vector<std::pair<int, std::vector<std::int64_t>>>>(shapes)) {
      report.emplace_back(index, dims);
    }
    return report;
  } catch (const nb::python_error& error) {
    throw CallbackError(code_of(error), text_of(error));
  }
}

nb::dict gpu_copy_counts() {
  const GpuCopies& copies = gpu_copies();
  nb::dict result;
  result["uploads"] = copies.uploads.load();
  result["uploaded_bytes"] = copies.uploaded.load();
  result["downloads"] = copies.downloads.load();
  result["downloaded_bytes"] = copies.downloaded.load();
  return result;
}

// -- the device
// ----------------------------------------------------------------------------------------------------

nb::tuple create_device(int index, const std::string& name) {
  if (!api_loaded()) throw InvalidArgument("load() comes first");
  auto* methods = new TFE_CustomDevice(device_methods());
  nb::object device = nb::steal(PyCapsule_New(methods, "TFE_CustomDevice", nullptr));
  nb::object info =
      nb::steal(PyCapsule_New(new_device({index, name}), "TFE_CustomDevice_DeviceInfo", nullptr));
  return nb::make_tuple(device, info);
}

// Resident values of a part, by number in the graph.
std::shared_ptr<SharedArena> arena_of(std::int64_t number) {
  auto found = SharedArena::find(number);
  if (!found) throw InvalidArgument("there is no shared arena " + std::to_string(number));
  return found;
}

std::int64_t arena_layout(std::int64_t number) { return arena_of(number)->layout(); }

nb::bytes arena_bytes(std::int64_t number, std::size_t offset, std::size_t bytes) {
  const auto arena = arena_of(number);
  if (offset > arena->size() || bytes > arena->size() - offset)
    throw InvalidArgument("shared arena " + std::to_string(number) + " ends before that");
  return nb::bytes(arena->data() + offset, bytes);
}

nb::dict counts() {
  nb::dict result;
  for (const auto& [name, count] : take_counts()) {
    result[name.c_str()] = nb::make_tuple(count.npu, count.host);
  }
  return result;
}

}  // namespace

static void bind(nb::module_& m) {
  nb::class_<Described>(m, "Described", "One input of an operator, a function or a part of a graph.")
      .def_prop_ro("kind", [](const Described& self) { return kKinds[static_cast<int>(self.kind)]; })
      .def_prop_ro("dtype", [](const Described& self) { return type_name(self.dtype); })
      .def_prop_ro("type_number", [](const Described& self) { return self.dtype; })
      .def_prop_ro("shape", [](const Described& self) { return shape_tuple(self.shape); })
      .def_prop_ro("version", [](const Described& self) { return self.version; })
      .def_prop_ro("variable", [](const Described& self) { return self.variable ? self.variable->id() : 0; })
      .def_prop_ro("address",
                   [](const Described& self) {
                     return self.storage ? reinterpret_cast<std::uintptr_t>(self.storage->address()) : 0;
                   })
      .def("numpy", &value_of)
      .def("__repr__", &repr_of);

  nb::class_<FunctionPlan>(m, "FunctionPlan", nb::dynamic_attr(), "How a function runs.")
      .def("__init__", &init_plan, "program"_a, "inputs"_a, "outputs"_a, nb::kw_only(),
           "others"_a = nb::dict(), "bound"_a = std::vector<std::pair<int, std::uint64_t>>(),
           "specialised"_a = std::vector<int>(), "watched"_a = std::vector<int>(), "patience"_a = 0,
           "random"_a = std::vector<Random>(), "name"_a = "", "layout"_a = 0)
      .def_static("host", &host_plan, "function"_a = "", nb::kw_only(), "escapes"_a = false,
                  "specialised"_a = std::vector<int>(), "operator"_a = nb::none(),
                  "other_npus"_a = std::vector<std::string>())
      .def_static("steps", &steps_plan, "steps"_a, "results"_a, nb::kw_only(),
                  "specialised"_a = std::vector<int>(), "name"_a = "")
      .def_static("loop", &loop_plan, "condition"_a, "body"_a, "inputs"_a, "results"_a, nb::kw_only(),
                  "name"_a = "")
      .def_static("branch", &branch_plan, "functions"_a, "inputs"_a, "results"_a, "made"_a, nb::kw_only(),
                  "name"_a = "")
      .def_prop_ro("kind", &kind_of)
      .def_ro("name", &FunctionPlan::name)
      .def_ro("host_function", &FunctionPlan::host_function)
      .def_ro("specialised", &FunctionPlan::specialised)
      .def_ro("watched", &FunctionPlan::watched)
      .def_prop_ro("bound", [](const FunctionPlan& self) {
        nb::list result;
        for (const BoundVariable& bound : self.bound)
          result.append(nb::make_tuple(bound.input, bound.version));
        return result;
      });

  m.def(
      "load",
      [](const std::vector<std::string>& libraries) {
        load_api(libraries);
        register_kernel();
      },
      "libraries"_a,
      "Finds TensorFlow's C API in these loaded libraries and registers the NpuGraph operator.");
  m.def("create_device", &create_device, "index"_a, "name"_a,
        "The two capsules that context.register_custom_device takes.");
  m.def(
      "set_callbacks",
      [](nb::object classify, nb::object op, nb::object function, nb::object part, nb::object part_run,
         nb::object variable_types, nb::object assign_function, nb::object part_of) {
        set_callbacks(std::make_unique<PythonCallbacks>(
            std::move(classify), std::move(op), std::move(function), std::move(part), std::move(part_run),
            std::move(variable_types), std::move(assign_function), std::move(part_of)));
      },
      "classify"_a, "eager_compile"_a, "function_compile"_a, "part_compile"_a, "part_run"_a = nb::none(),
      "variable_types"_a = nb::none(), "assign_function"_a = nb::none(), "part_of"_a = nb::none());
  m.def("new_part", &new_part, "device"_a = 0, "given"_a = std::vector<int>(), "left"_a = std::vector<int>(),
        "A number for the 'graph' attribute of an NpuGraph node.");
  nb::class_<SessionState>(m, "SessionState",
                           "Generators of random numbers that the parts of a session share.")
      .def(nb::init<>())
      .def(
          "__enter__", [](SessionState& self) { enter_session(self.generators); },
          "Operations that this thread makes from now on belong to the session.")
      .def("__exit__", [](SessionState&, nb::args) { enter_session(nullptr); });
  m.def("arena_layout", &arena_layout, "number"_a, "The layout of what a part left to another.");
  m.def("arena_bytes", &arena_bytes, "number"_a, "offset"_a, "nbytes"_a, "A copy of some of it.");
  m.def("drop_part", &drop_part, "part"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("forget", &forget_plans, "name"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Drops the plans of a function or operator.");
  m.def("forget_all", &forget_all_plans, nb::call_guard<nb::gil_scoped_release>());
  m.def("reset_random", &reset_generators, "Counted random numbers begin again.");
  m.def("set_host_device", &set_host_device, "name"_a,
        "The name of the host's device, which a cluster that this process joins changes.");
  m.def("set_eager_threshold", &set_eager_threshold, "calls"_a,
        "Operators are compiled once they were called more often than this with the same signature.");
  m.def("set_log_placement", &set_log_placement, "on"_a);
  m.def("set_hard_placement", &set_hard_placement, "on"_a,
        "Whether `classify` is asked at every call of an operator that the host would run.");
  m.def("shared_updates", &shared_update_count,
        "How often NPUs divided an update that all of them would have computed alike.");
  m.def("host_operators", &HostOp::count,
        "How many operators and functions the device has had TensorFlow run, since the process began.");
  m.def("take_counts", &counts,
        "Calls on the NPU and on the host by name, since the last time this was asked.");
  m.def("set_timeline", [](bool on) { Timeline::get().turn(on); }, "on"_a);
  m.def(
      "take_timeline",
      [] {
        nb::list result;
        for (const Span& span : Timeline::get().take()) {
          result.append(nb::make_tuple(span.name, span.on_npu, span.thread, span.start, span.end));
        }
        return result;
      },
      "Calls while the timeline is on: name, whether on the NPU, thread, start and end in nanoseconds.");
  m.def(
      "take_interrupt", [] { return std::exchange(interrupted, false); },
      "Whether a callback on this thread was interrupted since this was last asked.");
  m.def(
      "use_gpus",
      [](nb::handle capsule) {
        void* calls = PyCapsule_GetPointer(capsule.ptr(), npu::GpuCalls::kName);
        if (calls == nullptr) throw nb::python_error();
        set_gpu_calls(static_cast<const npu::GpuCalls*>(calls));
      },
      "calls"_a, "Lets plans have programs of GPUs; takes npu_runtime.cuda.gpu_calls().");
  m.def("gpu_copies", &gpu_copy_counts, "Copies between the host and GPUs, since the process began.");
  m.def("trim", [](int device) { TensorPool::of(npu::Device::get(device)).trim(); }, "device"_a = 0);
}

}  // namespace npu::python

NB_MODULE(_tensorflow, m) {
  nanobind::set_leak_warnings(false);  // TensorFlow keeps functions and variables until the interpreter ends
  npu::python::bind(m);
}
