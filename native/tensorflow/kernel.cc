// NpuGraph: found by its number, compiled for the shapes it meets, run on the executor's thread.
#include "tensorflow/kernel.h"

#include <Python.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/activity.h"
#include "core/errors.h"
#include "tensorflow/cache.h"
#include "tensorflow/callbacks.h"
#include "tensorflow/shared_arena.h"
#include "tensorflow/timeline.h"

namespace npu::tf {
namespace {

constexpr std::size_t kMostSignatures = 64;
constexpr std::size_t kMostVariants = 32;

struct Part {
  Part(int index, std::vector<int> taken, std::vector<int> kept)
      : device(index), given(std::move(taken)), left(std::move(kept)) {}
  int device;
  std::vector<int> given, left;
  SharedArena::Need need = std::make_shared<std::atomic<std::size_t>>(0);
  PlanCache plans{kMostSignatures, kMostVariants};
  const std::shared_ptr<Generators> generators = std::make_shared<Generators>();  // outside of sessions
};

class Parts {
 public:
  static Parts& get() {
    static auto* parts = new Parts();
    return *parts;
  }

  std::int64_t add(std::shared_ptr<Part> part) {
    const std::lock_guard lock(mutex_);
    parts_[++last_] = std::move(part);
    return last_;
  }

  void drop(std::int64_t id) {
    std::shared_ptr<Part> dropped;  // freed without the lock
    const std::lock_guard lock(mutex_);
    const auto found = parts_.find(id);
    if (found == parts_.end()) return;
    dropped = std::move(found->second);
    parts_.erase(found);
  }

  std::shared_ptr<Part> find(std::int64_t id) {
    const std::lock_guard lock(mutex_);
    const auto found = parts_.find(id);
    return found == parts_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::unordered_map<std::int64_t, std::shared_ptr<Part>> parts_;
};

// The generators of the session that the calling thread has entered.
thread_local std::shared_ptr<Generators> entered;

// An operation of one session, or of a function.
struct Kernel {
  std::int64_t part = 0;
  std::shared_ptr<Generators> generators = entered;
  std::string definition;  // of a part that another process has sent
  int task = 0;
  std::once_flag known;

  // Makes what was sent a part of this process, at the first run.
  std::int64_t number() {
    if (definition.empty()) return part;
    std::call_once(known, [this] {
      Callbacks* python = callbacks();
      if (!python) return;  // the run says that there is no such part
      const InCallback inside;
      part = python->part_of(definition, task);
    });
    return part;
  }
};

std::string string_attr(TF_OpKernelConstruction* construction, const char* name, const Status& status) {
  std::int32_t count = 0, bytes = 0;
  api.TF_OpKernelConstruction_GetAttrSize(construction, name, &count, &bytes, status);
  if (!status.ok() || bytes <= 0) return {};
  std::string value(static_cast<std::size_t>(bytes), 0);
  api.TF_OpKernelConstruction_GetAttrString(construction, name, value.data(), value.size(), status);
  return value;
}

// One run of the kernel.
class Run {
 public:
  Run(Kernel& kernel, TF_OpKernelContext* context)
      : id_(kernel.number()), session_(kernel.generators.get()), context_(context) {}

  // Raises CallbackError and the runtime's errors.
  void operator()() {
    // Without a part it only says that this process knows the operator.
    if (!id_ && !api.TF_NumInputs(context_) && !api.TF_NumOutputs(context_)) return;
    const std::shared_ptr<Part> part = Parts::get().find(id_);
    Callbacks* python = callbacks();
    if (!part || !python) {
      throw CallbackError(kFailedPrecondition,
                          "NpuGraph: part " + std::to_string(id_) +
                              " does not exist; it lives as long as the function it was made for");
    }
    read_inputs();
    if (!part->given.empty()) take_arena(part->given.front());
    const auto read = [&](int input, std::string& values) {
      const Storage& storage = *inputs_[static_cast<std::size_t>(input)];
      values.append(static_cast<const char*>(storage.data()), storage.bytes());
    };
    const auto compile = [&](const std::shared_ptr<FunctionPlan>&) {
      const InCallback inside;
      auto plan = python->compile_part(id_, describe());
      return plan ? plan : std::make_shared<FunctionPlan>();
    };
    const Key key = make_key();
    std::shared_ptr<FunctionPlan> plan = part->plans.find(key, read, compile, 0);
    if (plan && !still_bound(*plan)) plan = part->plans.replace(key, read, compile, plan);
    if (!plan || !still_bound(*plan))
      throw CallbackError(kInternal, "NpuGraph: the program fits other values");
    if (plan->on_npu()) {
      run(*plan, *part);
    } else {
      Activity::count_host_call();
      run_on_host(*python, *part);
    }
  }

 private:
  void check(const Status& status) {
    if (!status.ok()) throw CallbackError(api.TF_GetCode(status), api.TF_Message(status));
  }

  void read_inputs() {
    const Status status;
    const int count = api.TF_NumInputs(context_);
    for (int i = 0; i < count; ++i) {
      TF_Tensor* tensor = nullptr;
      api.TF_GetInput(context_, i, &tensor, status);
      check(status);
      inputs_.push_back(Storage::adopt(tensor));
    }
  }

  void take_arena(int input) {
    const auto& number = inputs_[static_cast<std::size_t>(input)];
    arena_ = SharedArena::find(*static_cast<const std::int64_t*>(number->data()));
    if (!arena_) throw CallbackError(kInternal, "NpuGraph: what another part left is gone");
  }

  Key make_key() const {
    Key key;
    if (arena_) key.push_back(arena_->layout());
    for (const auto& input : inputs_) {
      key.push_back(static_cast<std::int64_t>(input->dtype()) << 32 | input->shape().rank());
      key.insert(key.end(), input->shape().dims().begin(), input->shape().dims().end());
    }
    return key;
  }

  std::vector<Described> describe() const {
    std::vector<Described> result;
    for (const auto& input : inputs_) {
      Described described;
      described.kind = type_size(input->dtype()) ? Described::Kind::Tensor : Described::Kind::Host;
      described.dtype = input->dtype();
      described.shape = input->shape();
      described.storage = input;
      result.push_back(std::move(described));
    }
    return result;
  }

  // A bound input is in the program, which keeps its tensor: the same address means the same contents.
  bool still_bound(const FunctionPlan& plan) const {
    return std::all_of(plan.bound.begin(), plan.bound.end(), [&](const BoundVariable& bound) {
      return reinterpret_cast<std::uintptr_t>(inputs_[static_cast<std::size_t>(bound.input)]->data()) ==
             bound.version;
    });
  }

  void set_output(int index, const std::shared_ptr<Storage>& storage) {
    const Status status;
    api.TF_SetOutput(context_, index, storage->tensor(status), status);
    check(status);
  }

  // Forwards the part's resident values.
  void leave(std::int64_t layout, const Part& part) {
    arena_->pass_on(layout, part.need);
    const auto number = Storage::adopt(SharedArena::publish(arena_));
    for (const int result : part.left) set_output(result, number);
  }

  void run_on_host(Callbacks& python, const Part& part) {
    const InCallback inside;
    auto results = python.run_part(id_, describe());
    if (!part.left.empty()) pack(results, part);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i]) set_output(static_cast<int>(i), results[i]);
    }
  }

  // Keeps resident results in the device's memory. After the results come, in one
  // list of numbers, the layout, its size, and the place of each.
  void pack(std::vector<std::shared_ptr<Storage>>& results, const Part& part) {
    const auto numbers = std::move(results.back());
    results.pop_back();
    const auto* known = static_cast<const std::int64_t*>(numbers->data());
    arena_ = std::make_shared<SharedArena>(npu::Device::get(part.device), static_cast<std::size_t>(known[1]),
                                           part.need, "a part of a graph");
    for (std::size_t k = 0; k < part.left.size(); ++k) {
      const auto result = std::move(results[static_cast<std::size_t>(part.left[k])]);
      if (result->bytes()) std::memcpy(arena_->data() + known[2 + k], result->data(), result->bytes());
    }
    leave(known[0], part);
  }

  // Runs the program in the shared arena.
  ShapeReport run_in_arena(const FunctionPlan& plan, const Part& part, const std::vector<Place>& inputs,
                           const std::vector<Place>& outputs) {
    if (!plan.program) throw CallbackError(kInternal, "NpuGraph: parts of a GPU share no arena");
    std::vector<void*> in, out;
    for (const Place& place : inputs) in.push_back(place.data());
    for (const Place& place : outputs) out.push_back(place.data());
    const std::size_t bytes = plan.program->memory_bytes();
    if (arena_) {
      arena_->reserve(bytes, plan.name);
    } else {
      arena_ = std::make_shared<SharedArena>(npu::Device::get(part.device), bytes, part.need, plan.name);
    }
    ShapeReport report = plan.program->run_in(arena_->data(), in.data(), out.data());
    if (!part.left.empty()) leave(plan.layout, part);
    return report;
  }

  void run(FunctionPlan& plan, Part& part) {
    const Timed timed(plan.name, true);
    npu::Device& device = npu::Device::get(part.device);
    Generators& generators = session_ ? *session_ : *part.generators;
    Generators::Drawn drawn = generators.draw(plan);
    std::vector<Place> in, out;
    for (const Port& port : plan.inputs) {
      const auto at = static_cast<std::size_t>(port.index);
      in.push_back(port.kind == Port::Kind::Random
                       ? Place{nullptr, &drawn.counters[2 * at], 2 * sizeof(std::uint64_t)}
                       : Place{inputs_[at].get()});
    }
    // Version-1 variables are memory that operators write.
    const auto variable = [&](const ProgramOutput& output) {
      return output.port.kind == Port::Kind::Variable ? inputs_[static_cast<std::size_t>(output.port.index)]
                                                      : nullptr;
    };
    std::vector<std::shared_ptr<Storage>> made;
    for (const ProgramOutput& output : plan.outputs) {
      const bool in_place = output.aliased && variable(output);
      made.push_back(in_place ? variable(output)
                              : Storage::allocate(device, output.dtype, output.shape, plan.name));
      out.push_back({made.back().get()});
    }
    const bool alone = !arena_ && part.left.empty();
    const ShapeReport report = alone ? plan.run(in, out, device) : run_in_arena(plan, part, in, out);
    for (const auto& storage : made) storage->settle();  // TensorFlow's kernels read it where it is
    for (const auto& [index, dims] : report) {
      auto& whole = made[static_cast<std::size_t>(index)];
      if (std::ranges::equal(whole->shape().dims(), dims)) continue;
      auto actual = Storage::allocate(device, whole->dtype(), Shape(dims), plan.name);
      actual->fill(whole->data());
      whole = actual;
    }
    for (std::size_t i = 0; i < made.size(); ++i) {
      const Port& port = plan.outputs[i].port;
      if (port.kind == Port::Kind::Random) {
        generators.move(drawn, plan, port.index, *static_cast<const std::uint64_t*>(made[i]->data()));
        continue;
      }
      const auto target = variable(plan.outputs[i]);
      if (!target) set_output(plan.outputs[i].port.index, made[i]);
      if (target && target != made[i]) target->fill(made[i]->data());
    }
    for (const OtherResult& other : plan.others) {
      const auto at = static_cast<std::size_t>(other.port.index);
      if (other.port.kind == Port::Kind::Constant) set_output(other.result, other.constant);
      if (other.port.kind == Port::Kind::Input) set_output(other.result, inputs_[at]);
      if (other.port.kind != Port::Kind::Output) continue;
      for (std::size_t i = 0; i < made.size(); ++i) {
        if (plan.outputs[i].port.index == other.port.index) set_output(other.result, made[i]);
      }
    }
  }

  std::int64_t id_;
  Generators* session_;
  TF_OpKernelContext* context_;
  std::vector<std::shared_ptr<Storage>> inputs_;
  std::shared_ptr<SharedArena> arena_;
};

void* create(TF_OpKernelConstruction* construction) {
  const Status status;
  auto kernel = std::make_unique<Kernel>();
  api.TF_OpKernelConstruction_GetAttrInt64(construction, "graph", &kernel->part, status);
  if (status.ok()) kernel->definition = string_attr(construction, "definition", status);
  std::int64_t task = 0;
  if (status.ok()) api.TF_OpKernelConstruction_GetAttrInt64(construction, "task", &task, status);
  kernel->task = static_cast<int>(task);
  if (!status.ok()) api.TF_OpKernelConstruction_Failure(construction, status);
  return kernel.release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

void compute(void* kernel, TF_OpKernelContext* context) {
  const auto fail = [&](int code, const std::string& message) {
    const Status status;
    api.TF_SetStatus(status, code, message.c_str());
    api.TF_OpKernelContext_Failure(context, status);
  };
  try {
    Run(*static_cast<Kernel*>(kernel), context)();
  } catch (const CallbackError& error) {
    fail(error.code(), error.what());
  } catch (const OutOfDeviceMemory& error) {
    fail(kResourceExhausted, std::string("OOM when allocating tensor: ") + error.what());
  } catch (const InvalidArgument& error) {
    fail(kInvalidArgument, error.what());
  } catch (const TaskError& error) {
    fail(kInvalidArgument, error.what());
  } catch (const std::exception& error) {
    fail(kInternal, error.what());
  }
}

void unknown_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  api.TF_ShapeInferenceContextSetUnknownShape(context, status);
}

}  // namespace

std::int64_t new_part(int device, std::vector<int> given, std::vector<int> left) {
  return Parts::get().add(std::make_shared<Part>(device, std::move(given), std::move(left)));
}

void enter_session(std::shared_ptr<Generators> generators) { entered = std::move(generators); }

void drop_part(std::int64_t part) { Parts::get().drop(part); }

void register_kernel() {
  static std::once_flag once;
  std::call_once(once, [] {
    const auto check = [](const Status& status) {
      if (!status.ok()) throw InvalidArgument(api.TF_Message(status));
    };
    const Status status;
    TF_OpDefinitionBuilder* op = api.TF_NewOpDefinitionBuilder("NpuGraph");
    api.TF_OpDefinitionBuilderAddAttr(op, "Tin: list(type) >= 0");
    api.TF_OpDefinitionBuilderAddAttr(op, "Tout: list(type) >= 0");
    api.TF_OpDefinitionBuilderAddAttr(op, "graph: int = 0");
    api.TF_OpDefinitionBuilderAddAttr(op, "definition: string = ''");
    api.TF_OpDefinitionBuilderAddAttr(op, "task: int = 0");
    api.TF_OpDefinitionBuilderAddInput(op, "inputs: Tin");
    api.TF_OpDefinitionBuilderAddOutput(op, "outputs: Tout");
    // Stateful, so that constant folding does not run parts, which may draw random numbers.
    api.TF_OpDefinitionBuilderSetIsStateful(op, true);
    api.TF_OpDefinitionBuilderSetShapeInferenceFunction(op, &unknown_shapes);
    api.TF_RegisterOpDefinition(op, status);
    check(status);
    TF_KernelBuilder* kernel = api.TF_NewKernelBuilder("NpuGraph", "CPU", &create, &compute, &destroy);
    api.TF_RegisterKernelBuilder("NpuGraph", kernel, status);
    check(status);
  });
}

}  // namespace npu::tf
