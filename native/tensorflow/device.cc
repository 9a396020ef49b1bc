// The callbacks of the custom device, and the routing of operators.
#include "tensorflow/device.h"

#include <Python.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string_view>
#include <unordered_map>

#include "core/activity.h"
#include "core/errors.h"
#include "tensorflow/attrs.h"
#include "tensorflow/cache.h"
#include "tensorflow/call.h"
#include "tensorflow/callbacks.h"
#include "tensorflow/device_threads.h"
#include "tensorflow/pool.h"
#include "tensorflow/timeline.h"

namespace npu::tf {
namespace {

// -- operators by name
// -------------------------------------------------------------------------------------------

enum class Route {
  Host,             // the host kernel
  Operator,         // a plan, or the host kernel
  Function,         // a plan, or the host
  Identity,         // of a variable: the same variable
  MakeVariable,     // VarHandleOp
  ReadVariable,     // exposes the variable's memory
  InspectVariable,  // the host kernel; it neither changes nor keeps variables
  ChangeVariable,   // the host kernel; variables have another value afterwards
  Structure,        // the host; it runs functions that may do anything but keep variables
};

constexpr std::size_t kMostSignatures = 512;
constexpr std::size_t kMostVariants = 32;

struct Entry {
  std::string name;
  std::atomic<Route> route = Route::Host;
  std::atomic<bool> attrs_from_inputs = false;
  std::atomic<bool> outdated = false;  // recompute the route
  PlanCache plans{kMostSignatures, kMostVariants};
  Generators generators;
  std::mutex mutex;
  std::unique_ptr<std::vector<int>> types;
  std::atomic<std::uint64_t> on_npu = 0;
  std::atomic<std::uint64_t> on_host = 0;

  // Element types of the variables among a function's inputs, cached.
  const std::vector<int>& variable_types(Callbacks& python) {
    {
      const std::lock_guard lock(mutex);
      if (types) return *types;
    }
    const InCallback inside;
    auto found = std::make_unique<std::vector<int>>(python.variable_types(name));
    const std::lock_guard lock(mutex);
    if (!types) types = std::move(found);
    return *types;
  }
};

struct RouteName {
  std::string_view name;
  Route route;
};

constexpr RouteName kRoutes[] = {
    {"VarHandleOp", Route::MakeVariable},
    {"ReadVariableOp", Route::ReadVariable},
    {"Identity", Route::Identity},
    {"_EagerConst", Route::Identity},
    {"VariableShape", Route::InspectVariable},
    {"VarIsInitializedOp", Route::InspectVariable},
    {"DisableCopyOnRead", Route::InspectVariable},
    {"ResourceGather", Route::InspectVariable},
    {"ResourceGatherNd", Route::InspectVariable},
    {"DestroyResourceOp", Route::ChangeVariable},
    {"ResourceCountUpTo", Route::ChangeVariable},
    {"RngSkip", Route::ChangeVariable},
    {"RngReadAndSkip", Route::ChangeVariable},
    {"PartitionedCall", Route::Structure},
    {"StatefulPartitionedCall", Route::Structure},
    {"If", Route::Structure},
    {"StatelessIf", Route::Structure},
    {"Case", Route::Structure},
    {"StatelessCase", Route::Structure},
    {"While", Route::Structure},
    {"StatelessWhile", Route::Structure},
};

// Families of operators that modify their variables.
constexpr std::string_view kChanging[] = {"AssignVariableOp",        "AssignAddVariableOp",
                                          "AssignSubVariableOp",     "AssignVariableXlaConcatND",
                                          "ResourceApply",           "ResourceSparseApply",
                                          "ResourceScatter",         "ResourceStridedSliceAssign",
                                          "ResourceAccumulator",     "ResourceConditionalAccumulator",
                                          "StatefulUniform",         "StatefulStandardNormal",
                                          "StatefulTruncatedNormal", "StatefulRandomBinomial"};

class Entries {
 public:
  static Entries& get() {
    static auto* entries = new Entries();  // TensorFlow may call the device until the process ends
    return *entries;
  }

  Entry& find(TFE_Context* context, std::string_view name) {
    if (Entry* entry = known(name)) {
      const bool outdated =
          entry->outdated.load(std::memory_order_relaxed) && entry->outdated.exchange(false);
      if (outdated) classify(context, *entry);
      return *entry;
    }
    auto made = std::make_unique<Entry>();
    made->name = name;
    classify(context, *made);
    const std::unique_lock lock(mutex_);
    const std::string_view key = made->name;
    return *entries_.emplace(key, std::move(made)).first->second;
  }

  template <typename Visit>
  void each(Visit visit) {
    const std::shared_lock lock(mutex_);
    for (auto& [name, entry] : entries_) visit(*entry);
  }

 private:
  Entry* known(std::string_view name) {
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(name);
    return found == entries_.end() ? nullptr : found->second.get();
  }

  static void classify(TFE_Context* context, Entry& entry) {
    for (const RouteName& known : kRoutes) {
      if (known.name == entry.name) {
        entry.route = known.route;
        return;
      }
    }
    for (const std::string_view family : kChanging) {
      if (entry.name.starts_with(family)) {
        entry.route = Route::ChangeVariable;
        return;
      }
    }
    if (api.TFE_ContextHasFunction(context, entry.name.c_str())) {
      entry.route = Route::Function;
      return;
    }
    Callbacks* python = callbacks();
    if (!python) return;
    const InCallback inside;
    const OpTraits traits = python->classify(entry.name);
    entry.route = traits.on_npu ? Route::Operator : Route::Host;
    entry.attrs_from_inputs = traits.attrs_from_inputs;
  }

  std::shared_mutex mutex_;
  std::unordered_map<std::string_view, std::unique_ptr<Entry>> entries_;
};

std::atomic<std::uint64_t> eager_threshold = 3;
std::atomic<bool> log_placement = false;
std::atomic<bool> hard_placement = false;

#ifdef Py_LIMITED_API  // every CPython exports it, but the headers of the stable ABI leave it out
extern "C" int PyGILState_Check(void);
#endif

// TensorFlow runs a few operators with the GIL held; nothing here may wait for another thread with it.
class WithoutPythonLock {
 public:
  WithoutPythonLock() : state_(PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutPythonLock() {
    if (state_) PyEval_RestoreThread(state_);
  }
  WithoutPythonLock(const WithoutPythonLock&) = delete;
  WithoutPythonLock& operator=(const WithoutPythonLock&) = delete;

 private:
  PyThreadState* state_;
};

// -- variables
// -----------------------------------------------------------------------------------------------------

constexpr std::string_view kAnonymous = "cd2c89b7-88b7-44c8-ad83-06c2a9158347";

// Variables that share a name are one variable.
class NamedVariables {
 public:
  static NamedVariables& get() {
    static auto* named = new NamedVariables();
    return *named;
  }

  std::shared_ptr<Variable> find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = variables_.find(name);
    return found == variables_.end() ? nullptr : found->second.lock();
  }

  void add(const std::string& name, const std::shared_ptr<Variable>& variable) {
    const std::lock_guard lock(mutex_);
    std::erase_if(variables_, [](const auto& entry) { return entry.second.expired(); });
    variables_[name] = variable;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<Variable>> variables_;
};

void make_variable(CustomDevice& device, Call& call) {
  const std::string attrs = call.attrs();
  if (!call.ok()) return;
  const std::string_view shared = attr_string(attrs, "shared_name").value_or("");
  const auto dtype = attr_type(attrs, "dtype");
  call.run_on_host();
  const bool known = !shared.empty() && dtype && type_size(static_cast<int>(*dtype)) != 0;
  if (!call.ok() || !known) return;
  const bool named = shared != kAnonymous;
  const std::string name =
      std::string(attr_string(attrs, "container").value_or("")) + "/" + std::string(shared);
  TFE_TensorHandle* resource = call.take_output(0);
  std::shared_ptr<Variable> variable = named ? NamedVariables::get().find(name) : nullptr;
  if (variable) {
    api.TFE_DeleteTensorHandle(resource);
  } else {
    variable = std::make_shared<Variable>(device.memory(), call.context(), resource, static_cast<int>(*dtype),
                                          attr_shape_known(attrs, "shape"),
                                          named ? Variable::Access::Name : Variable::Access::Handle);
    if (named) NamedVariables::get().add(name, variable);
  }
  call.set_output(0, std::move(variable));
}

void read_variable(Call& call) {
  const Operand& input = call.inputs()[0];
  if (input.kind != Described::Kind::Variable) {
    call.run_on_host();
    return;
  }
  Variable& variable = *input.object->variable;
  const std::lock_guard lock(variable.mutex());
  call.set_output_to_value(0, variable);
}

// The locks of a call's variables, taken in the order of their numbers; done with each is what is asked for.
template <typename Each>
std::vector<std::unique_lock<std::mutex>> locked(const Call& call, Each each) {
  std::vector<Variable*> variables;
  for (Variable* variable : call.variables()) {
    if (variable) variables.push_back(variable);
  }
  auto locks = lock_all(variables);
  for (Variable* variable : variables) each(*variable);
  return locks;
}

// Runs an operator on the host that reads its variables.
void inspect_variables(Call& call) {
  const auto locks = locked(call, [](Variable& variable) { variable.settle(); });
  call.run_on_host();
}

// Runs an operator on the host that assigns its variables.
void change_variables(Call& call) {
  // Released so that TensorFlow can work in place.
  const auto locks = locked(call, [](Variable& variable) { variable.forget(); });
  call.run_on_host();
}

// Runs an operator on the host that may access its variables arbitrarily.
void run_freely(Call& call, const char* function, bool keeps) {
  const auto forget = [&](void (Variable::*and_do)()) {
    for (Variable* variable : call.variables()) {
      if (!variable) continue;
      const std::lock_guard lock(variable->mutex());
      variable->forget();
      (variable->*and_do)();
    }
  };
  if (!call.has_variables()) {
    call.run_on_host(function);
    return;
  }
  if (keeps) {
    for (Variable* variable : call.variables()) {
      if (variable) variable->escape();
    }
  }
  forget(&Variable::lend);
  call.run_on_host(function);
  forget(&Variable::take_back);
  if (call.ok() && call.returns_resource()) {
    for (Variable* variable : call.variables()) {
      if (variable) variable->escape();
    }
  }
}

// -- plans
// ---------------------------------------------------------------------------------------------------------

void run_function(Call& call, Entry& entry);

std::atomic<std::uint64_t> shared_updates = 0;

// Results of the completed steps of a plan.
using StepResults = std::vector<std::vector<TFE_TensorHandle*>>;

TFE_TensorHandle* handle_of(const Call& call, const StepResults& results, const StepSource& source) {
  const auto index = static_cast<std::size_t>(source.index);
  return source.step < 0 ? call.inputs()[index].handle
                         : results[static_cast<std::size_t>(source.step)][index];
}

// The variable among the inputs of a call; null for anything else.
Variable* variable_of(const Call& call, int input) {
  const Object* object = call.inputs()[static_cast<std::size_t>(input)].object;
  return object ? object->variable.get() : nullptr;
}

std::vector<Variable*> variables_of(const Call& call, const Mirrored& mirrored) {
  std::vector<Variable*> found = {variable_of(call, mirrored.own)};
  for (const int other : mirrored.others) found.push_back(variable_of(call, other));
  return found;
}

// Whether each of several steps can run its share: the variables of all NPUs have the same values. Those that
// the shares write then are in the same memory too.
bool can_share(const Call& call, std::span<const FunctionStep> steps) {
  const Status status;
  for (const FunctionStep& step : steps) {
    if (!step.share) return false;
    for (const Mirrored& mirrored : step.share->mirrored) {
      const auto variables = variables_of(call, mirrored);
      if (std::any_of(variables.begin(), variables.end(), [](const Variable* v) { return !v; })) return false;
      const bool same = mirrored.written ? Variable::share_value(variables, status)
                                         : Variable::same_value(variables, status);
      if (!same) return false;
    }
  }
  shared_updates.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void run_step(Call& call, CustomDevice& device, TF_Status* status, const FunctionStep& step, bool share,
              const StepResults& results, std::vector<TFE_TensorHandle*>& made) {
  const std::string& function = share ? step.share->function : step.function;
  std::vector<TFE_TensorHandle*> inputs;
  for (const StepSource& source : share ? step.share->inputs : step.inputs) {
    inputs.push_back(handle_of(call, results, source));
  }
  int count = step.results;
  Call part(call, device, status, function.c_str(), inputs, &count, made.data());
  if (!part.ok()) return;
  for (const Mirrored& mirrored : share ? step.share->mirrored : std::vector<Mirrored>()) {
    if (!mirrored.written) continue;
    auto variables = variables_of(call, mirrored);
    part.add_followers(variables[0], {variables.begin() + 1, variables.end()});
  }
  run_function(part, Entries::get().find(call.context(), function));
  if (part.ok()) part.follow();
}

// Runs the steps [first, last) concurrently, each on its device; returns the first failure.
void run_stage(Call& call, const FunctionPlan& plan, std::size_t first, std::size_t last,
               StepResults& results) {
  std::vector<Status> statuses(last - first);
  const bool share = can_share(call, std::span(plan.steps).subspan(first, last - first));
  DeviceThreads::Group group;
  for (std::size_t i = first; i < last; ++i) {
    const FunctionStep& step = plan.steps[i];
    CustomDevice* device = CustomDevice::find(step.device);
    if (!device) {
      call.fail(kInternal, "step " + step.function + " is for NPU:" + std::to_string(step.device) +
                               ", which TensorFlow does not have");
      break;
    }
    TF_Status* status = statuses[i - first];
    const auto run = [&call, &step, &results, device, status, share, i] {
      try {
        run_step(call, *device, status, step, share, results, results[i]);
      } catch (const std::exception& error) {
        api.TF_SetStatus(status, kInternal, error.what());
      }
    };
    group.add(step.device, run);
  }
  group.run(call.memory().index());
  for (const Status& status : statuses) {
    if (!call.ok()) break;
    if (!ok(status)) call.fail(api.TF_GetCode(status), api.TF_Message(status));
  }
}

// Runs the steps of a plan: stages sequentially, the steps of a stage concurrently.
void run_steps(Call& call, const FunctionPlan& plan) {
  StepResults results(plan.steps.size());
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    results[i].assign(static_cast<std::size_t>(plan.steps[i].results), nullptr);
  }
  for (std::size_t i = 0; i < plan.steps.size() && call.ok();) {
    const FunctionStep& step = plan.steps[i];
    std::size_t end = i + 1;
    if (step.stage < 0) {
      run_step(call, call.device(), call.status(), step, false, results, results[i]);
    } else {
      while (end < plan.steps.size() && plan.steps[end].stage == step.stage) ++end;
      run_stage(call, plan, i, end, results);
    }
    i = end;
  }
  for (std::size_t i = 0; i < plan.step_results.size() && call.ok(); ++i) {
    const StepSource& source = plan.step_results[i];
    const auto index = static_cast<int>(i);
    if (source.step < 0) {
      call.set_output_to_input(index, source.index);
    } else {
      call.share_output(index, handle_of(call, results, source));
    }
  }
  for (const auto& handles : results) {
    for (TFE_TensorHandle* handle : handles) {
      if (handle) api.TFE_DeleteTensorHandle(handle);
    }
  }
}

// Owns handles of this device or the host.
class Handles {
 public:
  explicit Handles(std::size_t count) : all(count, nullptr) {}
  ~Handles() {
    for (TFE_TensorHandle* handle : all) {
      if (handle) api.TFE_DeleteTensorHandle(handle);
    }
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;

  std::vector<TFE_TensorHandle*> all;
};

// Results of a nested function call.
void call_function(const Call& whole, const std::string& function,
                   const std::vector<TFE_TensorHandle*>& inputs, Handles& results) {
  auto count = static_cast<int>(results.all.size());
  Call part(whole, function.c_str(), inputs, &count, results.all.data());
  if (part.ok()) run_function(part, Entries::get().find(whole.context(), function));
}

// Value of a condition or selector; for non-scalars, whether there is any element.
std::int64_t decision(Call& call, TFE_TensorHandle* handle) {
  Operand value;
  call.look_at(value, handle);
  const bool known = value.kind == Described::Kind::Tensor && (value.dtype == kBool || value.dtype == kInt32);
  if (!known) throw CallbackError(kInvalidArgument, std::string("nothing decides in ") + call.name());
  if (value.shape->rank()) return value.shape->elements() > 0;
  return value.dtype == kBool ? *static_cast<const bool*>(value.data())
                              : *static_cast<const std::int32_t*>(value.data());
}

void share_results(Call& call, const Structure& structure, const std::vector<TFE_TensorHandle*>& made) {
  for (std::size_t i = 0; i < structure.results.size() && call.ok(); ++i) {
    call.share_output(static_cast<int>(i), made[static_cast<std::size_t>(structure.results[i])]);
  }
}

void run_loop(Call& call, const Structure& loop, const std::vector<TFE_TensorHandle*>& inputs) {
  auto state = std::make_unique<Handles>(0);
  const auto current = [&]() -> const std::vector<TFE_TensorHandle*>& {
    return state->all.empty() ? inputs : state->all;
  };
  for (;;) {
    Handles condition(1);
    call_function(call, loop.functions[0], current(), condition);
    if (!call.ok()) return;
    if (!decision(call, condition.all[0])) break;
    auto next = std::make_unique<Handles>(inputs.size());
    call_function(call, loop.functions[1], current(), *next);
    if (!call.ok()) return;
    state = std::move(next);
  }
  share_results(call, loop, current());
}

void run_branch(Call& call, const Structure& branch, const std::vector<TFE_TensorHandle*>& inputs) {
  const auto last = static_cast<std::int64_t>(branch.functions.size()) - 1;
  std::int64_t chosen = decision(call, inputs[0]);
  if (chosen < 0 || chosen > last) chosen = last;
  Handles results(static_cast<std::size_t>(branch.made));
  call_function(call, branch.functions[static_cast<std::size_t>(chosen)], {inputs.begin() + 1, inputs.end()},
                results);
  share_results(call, branch, results.all);
}

// Runs a loop or branch: one function call per iteration, without Python.
void run_structure(Call& call, const Structure& structure) {
  Handles constants(structure.inputs.size());
  std::vector<TFE_TensorHandle*> inputs;
  for (std::size_t i = 0; i < structure.inputs.size(); ++i) {
    const StructureInput& input = structure.inputs[i];
    if (input.constant) constants.all[i] = call.handle_of(input.constant);
    if (!call.ok()) return;
    inputs.push_back(input.constant ? constants.all[i]
                                    : call.inputs()[static_cast<std::size_t>(input.index)].handle);
  }
  structure.kind == Structure::Kind::Loop ? run_loop(call, structure, inputs)
                                          : run_branch(call, structure, inputs);
}

// The function that the host runs for an NPU; null: the one that was called.
const char* host_function(const FunctionPlan& plan, int npu) {
  const auto other = static_cast<std::size_t>(npu) - 1;
  const std::string& name =
      npu > 0 && other < plan.host_functions.size() ? plan.host_functions[other] : plan.host_function;
  return name.empty() ? nullptr : name.c_str();
}

void run_plan(Call& call, Entry& entry, const std::shared_ptr<FunctionPlan>& plan) {
  if (plan && plan->structure.kind != Structure::Kind::None) {
    call.release_values();
    run_structure(call, plan->structure);
    return;
  }
  if (plan && !plan->steps.empty()) {
    call.release_values();
    run_steps(call, *plan);
    return;
  }
  if (!plan || !plan->on_npu()) {
    entry.on_host.fetch_add(1, std::memory_order_relaxed);
    Activity::count_host_call();
    const Timed timed(entry.name, false);
    if (plan && plan->host_operator && !call.has_variables()) {
      call.run_on_host(*plan->host_operator);
      return;
    }
    run_freely(call, plan ? host_function(*plan, call.memory().index()) : nullptr, plan && plan->escapes);
    return;
  }
  entry.on_npu.fetch_add(1, std::memory_order_relaxed);
  const Timed timed(entry.name, true);
  call.run(plan, entry.generators);
}

// Converts an exception of a callback to the call's status.
template <typename Function>
auto guarded(Call& call, Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const CallbackError& error) {
    call.fail(error.code(), error.what());
  } catch (const std::exception& error) {
    call.fail(kInternal, error.what());
  }
  return {};
}

// The plan as it came from Python, or one that leaves everything to the host. What does not fit the call is
// an error here: later nothing is checked.
std::shared_ptr<FunctionPlan> checked(std::shared_ptr<FunctionPlan> plan, const Call& call) {
  if (!plan) return std::make_shared<FunctionPlan>();
  const auto refuse = [&](const std::string& what) {
    throw CallbackError(kInternal,
                        "plan " + plan->name + " does not fit the call of " + call.name() + ": " + what);
  };
  const auto inputs = static_cast<int>(call.inputs().size());
  const auto is = [&](int index, Described::Kind kind) {
    return index >= 0 && index < inputs && call.inputs()[static_cast<std::size_t>(index)].kind == kind;
  };
  const auto is_result = [&](int index) { return index >= 0 && index < call.output_count(); };
  for (std::size_t i = 0; i < plan->inputs.size(); ++i) {
    const Port& port = plan->inputs[i];
    const std::string text = "program input " + std::to_string(i);
    if (port.kind == Port::Kind::Random) {
      if (port.index < 0 || static_cast<std::size_t>(port.index) >= plan->random.size()) refuse(text);
    } else if (port.kind == Port::Kind::Variable) {
      if (!is(port.index, Described::Kind::Variable)) refuse(text);
    } else {
      if (port.kind != Port::Kind::Input || !is(port.index, Described::Kind::Tensor)) refuse(text);
      const Operand& operand = call.inputs()[static_cast<std::size_t>(port.index)];
      const auto bytes = static_cast<std::size_t>(operand.shape->elements()) * type_size(operand.dtype);
      if (bytes < plan->input_bytes(i)) refuse(text + " is larger");
    }
  }
  for (const ProgramOutput& output : plan->outputs) {
    const int index = output.port.index;
    const bool fits = output.port.kind == Port::Kind::Variable ? is(index, Described::Kind::Variable)
                      : output.port.kind == Port::Kind::Random ? index < static_cast<int>(plan->random.size())
                                                               : is_result(index);
    if (!fits) refuse("a program output");
  }
  for (const OtherResult& other : plan->others) {
    const Port& port = other.port;
    const bool fits = port.kind == Port::Kind::Input      ? port.index >= 0 && port.index < inputs
                      : port.kind == Port::Kind::Variable ? is(port.index, Described::Kind::Variable)
                                                          : true;
    if (!fits || !is_result(other.result)) refuse("result " + std::to_string(other.result));
  }
  const auto variable = [&](int index) { return is(index, Described::Kind::Variable); };
  for (const BoundVariable& bound : plan->bound) {
    if (!variable(bound.input)) refuse("a bound variable");
  }
  if (!std::all_of(plan->watched.begin(), plan->watched.end(), variable)) refuse("a watched variable");
  for (const int input : plan->specialised) {
    if (!is(input, Described::Kind::Tensor)) refuse("a specialised input");
  }
  for (const FunctionStep& step : plan->steps) {
    for (const StepSource& source : step.inputs) {
      if (source.step < 0 && source.index >= inputs) refuse("step " + step.function);
    }
    if (!step.share) continue;
    for (const StepSource& source : step.share->inputs) {
      if (source.step < 0 && source.index >= inputs) refuse("step " + step.share->function);
    }
    for (const Mirrored& mirrored : step.share->mirrored) {
      const auto known = [&](int index) { return index >= 0 && index < inputs; };
      if (!known(mirrored.own) || !std::all_of(mirrored.others.begin(), mirrored.others.end(), known)) {
        refuse("a mirrored variable of step " + step.share->function);
      }
    }
  }
  if (const HostOperator* made = plan->host_operator.get()) {
    const auto known = [](const std::vector<int>& all, int limit) {
      return std::all_of(all.begin(), all.end(), [&](int index) { return index >= 0 && index < limit; });
    };
    if (!known(made->inputs, inputs) || !known(made->results, made->made) ||
        static_cast<int>(made->results.size()) != call.output_count()) {
      refuse("operator " + made->name);
    }
  }
  for (const StructureInput& input : plan->structure.inputs) {
    if (!input.constant && (input.index < 0 || input.index >= inputs)) refuse("an input of its structure");
  }
  const bool structured = plan->structure.kind != Structure::Kind::None;
  if (structured && static_cast<int>(plan->structure.results.size()) != call.output_count()) {
    refuse("the number of results");
  }
  if (!plan->steps.empty() && static_cast<int>(plan->step_results.size()) != call.output_count()) {
    refuse("the number of results");
  }
  return plan;
}

Key& scratch_key() {
  static thread_local Key key;
  key.clear();
  return key;
}

void append_bytes(Key& key, std::string_view bytes) {
  key.push_back(static_cast<std::int64_t>(bytes.size()));
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::int64_t)) {
    std::int64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    key.push_back(word);
  }
}

// The host has few kernels for channels-first data: such operators do not wait for their threshold.
bool channels_first(std::string_view attrs) {
  return attrs.find("NCHW") != std::string_view::npos || attrs.find("NCDHW") != std::string_view::npos;
}

bool host_has_no_kernel(const TF_Status* status) {
  const int code = api.TF_GetCode(status);
  return code == kNotFound || code == kUnimplemented;
}

void run_operator(Call& call, Entry& entry) {
  Callbacks* python = callbacks();
  if (!python || InCallback::active() || call.has_variables() || call.host_wanted()) {
    run_freely(call, nullptr, call.has_variables());
    return;
  }
  std::string attrs;
  if (!entry.attrs_from_inputs) {
    attrs = call.attrs();
    if (!call.ok()) return;
  }
  const auto read = [&](int input, std::string& values) { call.add_value(input, values); };
  const auto compile = [&](const std::shared_ptr<FunctionPlan>&) {
    const InCallback inside;
    auto plan =
        python->compile_op(entry.name, entry.attrs_from_inputs ? call.attrs() : attrs, call.describe());
    return checked(std::move(plan), call);
  };
  const auto run_planned = [&](std::uint64_t threshold) {
    Key& key = scratch_key();
    call.add_key(key);
    if (!entry.attrs_from_inputs) append_bytes(key, canonical_attrs(attrs));
    const auto plan = guarded(call, [&] { return entry.plans.find(key, read, compile, threshold); });
    if (!call.ok()) return true;
    if (!plan || !plan->on_npu()) return false;
    entry.on_npu.fetch_add(1, std::memory_order_relaxed);
    const Timed timed(entry.name, true);
    call.run(plan, entry.generators);
    return true;
  };
  const std::uint64_t threshold = channels_first(attrs) ? 0 : eager_threshold.load();
  if (run_planned(threshold)) return;
  {
    entry.on_host.fetch_add(1, std::memory_order_relaxed);
    Activity::count_host_call();
    const Timed timed(entry.name, false);
    call.run_on_host();
  }
  if (threshold == 0 || !host_has_no_kernel(call.status())) return;
  const std::string refusal = api.TF_Message(call.status());
  const int code = api.TF_GetCode(call.status());
  api.TF_SetStatus(call.status(), kOk, "");
  if (!run_planned(0)) api.TF_SetStatus(call.status(), code, refusal.c_str());
}

// Bound variables whose value has changed.
std::vector<int> changed_variables(const FunctionPlan& plan, const std::vector<Variable*>& variables) {
  std::vector<int> changed;
  for (const BoundVariable& bound : plan.bound) {
    if (variables[static_cast<std::size_t>(bound.input)]->version() != bound.version)
      changed.push_back(bound.input);
  }
  return changed;
}

// A passing variable is known by the address of its value, which therefore must stay in use.
void keep_bound_values(FunctionPlan& plan, const Call& call) {
  for (BoundVariable& bound : plan.bound) {
    Variable& variable = *call.inputs()[static_cast<std::size_t>(bound.input)].object->variable;
    if (!variable.passing()) continue;
    const Status status;
    const std::lock_guard lock(variable.mutex());
    bound.value = variable.value(status);
  }
}

void run_function(Call& call, Entry& entry) {
  Callbacks* python = callbacks();
  if (!python || InCallback::active() || call.host_wanted()) {
    run_freely(call, nullptr, false);
    return;
  }
  if (call.has_foreign_resources()) {
    guarded(call, [&] {
      call.adopt_variables(entry.variable_types(*python));
      return true;
    });
    if (!call.ok()) return;
  }
  Key& key = scratch_key();
  call.add_key(key);
  std::vector<int> changed;
  const auto read = [&](int input, std::string& values) { call.add_value(input, values); };
  const auto compile = [&](const std::shared_ptr<FunctionPlan>& previous) {
    const InCallback inside;
    // Frees memory that is unused until the next eager operators, for the compile.
    TensorPool::of(call.memory()).trim();
    auto plan = python->compile_function(entry.name, call.attrs(), call.describe(), previous, changed);
    plan = checked(std::move(plan), call);
    keep_bound_values(*plan, call);
    return plan;
  };
  auto plan = guarded(call, [&] { return entry.plans.find(key, read, compile, 0); });
  if (!call.ok()) return;
  if (plan && (!plan->bound.empty() || !plan->watched.empty())) {
    const auto variables = call.variables();
    changed = changed_variables(*plan, variables);
    if (!changed.empty() || plan->settled(variables)) {
      plan = guarded(call, [&] { return entry.plans.replace(key, read, compile, plan); });
      if (!call.ok()) return;
      // Values that change while it is compiled: this call goes to the host.
      if (plan && !changed_variables(*plan, variables).empty()) plan = nullptr;
    }
  }
  run_plan(call, entry, plan);
}

void route(CustomDevice& device, Call& call, Entry& entry) {
  switch (entry.route) {
    case Route::Function:
      run_function(call, entry);
      break;
    case Route::Operator:
      run_operator(call, entry);
      break;
    case Route::ReadVariable:
      read_variable(call);
      break;
    case Route::Identity:
      if (call.has_variables()) {
        call.set_output(0, call.inputs()[0].object->variable);
      } else if (call.inputs()[0].object) {
        call.set_output(0, call.inputs()[0].object->storage);
      } else {
        call.run_on_host();
      }
      break;
    case Route::MakeVariable:
      make_variable(device, call);
      break;
    case Route::InspectVariable:
      inspect_variables(call);
      break;
    case Route::ChangeVariable:
      change_variables(call);
      break;
    case Route::Structure:
      run_freely(call, nullptr, false);
      break;
    case Route::Host:
      if (Callbacks* python = callbacks(); python && hard_placement.load() && !InCallback::active()) {
        const InCallback inside;
        python->classify(entry.name);  // throws if the operator must not run on the host
      }
      entry.on_host.fetch_add(1, std::memory_order_relaxed);
      Activity::count_host_call();
      run_freely(call, nullptr, call.has_variables());
      break;
  }
}

// -- what TensorFlow calls
// -----------------------------------------------------------------------------------------

// Variables bring an operator to the device of their handles: one that names another NPU runs there.
CustomDevice& chosen_device(CustomDevice& asked, const TFE_Op* op, TF_Status* status) {
  const char* wanted = api.TFE_OpGetDevice(op, status);
  if (!*wanted || asked.name() == wanted) return asked;
  CustomDevice* other = CustomDevice::find(std::string_view(wanted));
  return other ? *other : asked;
}

void execute(const TFE_Op* op, int* count, TFE_TensorHandle** outputs, TF_Status* status, void* info) {
  auto& device = chosen_device(*static_cast<CustomDevice*>(info), op, status);
  const WithoutPythonLock unlocked;
  for (int i = 0; i < *count; ++i) outputs[i] = nullptr;
  Call call(device, op, count, outputs, status);
  if (!call.ok()) return;
  if (log_placement.load(std::memory_order_relaxed)) {
    std::fprintf(stderr, "Executing op %s in device %s\n", call.name(), device.name().c_str());
  }
  guarded(call, [&] {
    route(device, call, Entries::get().find(call.context(), call.name()));
    return true;
  });
  if (!call.ok()) call.drop_outputs();
}

TFE_TensorHandle* copy_to_device(TFE_Context* context, TFE_TensorHandle* tensor, TF_Status* status,
                                 void* info) {
  return static_cast<CustomDevice*>(info)->copy(context, tensor, status);
}

TFE_TensorHandle* copy_from_device(TFE_Context* context, TFE_TensorHandle* tensor, const char* target,
                                   TF_Status* status, void* info) {
  auto& device = *static_cast<CustomDevice*>(info);
  Object* object = device.object(tensor, status);
  if (!ok(status)) return nullptr;
  if (!object) {
    api.TF_SetStatus(status, kInternal, "the tensor is not on this device");
    return nullptr;
  }
  TFE_TensorHandle* host = nullptr;
  if (object->variable) {
    try {
      object->variable->escape();  // fetches the value from a GPU
    } catch (const std::exception& error) {
      api.TF_SetStatus(status, kInternal, error.what());
      return nullptr;
    }
    host = object->variable->resource();
  } else {
    host = object->storage->host(status);
    if (!ok(status)) return nullptr;
  }
  return api.TFE_TensorHandleCopyToDevice(host, context, target, status);
}

void delete_device(void* info) { delete static_cast<CustomDevice*>(info); }

}  // namespace

thread_local int InCallback::depth_ = 0;

namespace {
std::atomic<Callbacks*> current_callbacks = nullptr;
}

Callbacks* callbacks() { return current_callbacks.load(std::memory_order_acquire); }

void set_callbacks(std::unique_ptr<Callbacks> made) {
  // The old one may be in use on another thread: there are only ever a few, they are kept.
  current_callbacks.store(made.release(), std::memory_order_release);
}

TFE_CustomDevice device_methods() {
  return {
      kCustomDeviceVersion, &copy_to_device, &copy_from_device, &execute, &delete_device, nullptr, nullptr};
}

void* new_device(const DeviceOptions& options) { return new CustomDevice(options.index, options.name); }

void set_eager_threshold(std::uint64_t calls) { eager_threshold.store(calls); }
void set_log_placement(bool on) { log_placement.store(on); }
void set_hard_placement(bool on) { hard_placement.store(on); }

void forget_plans(const std::string& name) {
  Entries::get().each([&](Entry& entry) {
    if (entry.name == name) entry.plans.clear();
  });
}

void reset_generators() {
  Entries::get().each([](Entry& entry) { entry.generators.reset(); });
}

void forget_all_plans() {
  Entries::get().each([](Entry& entry) {
    entry.plans.clear();
    entry.outdated = true;
  });
}

std::map<std::string, Counts> take_counts() {
  std::map<std::string, Counts> result;
  Entries::get().each([&](Entry& entry) {
    const Counts counts{entry.on_npu.exchange(0), entry.on_host.exchange(0)};
    if (counts.npu || counts.host) result[entry.name] = counts;
  });
  return result;
}

std::uint64_t shared_update_count() { return shared_updates.load(std::memory_order_relaxed); }

}  // namespace npu::tf
