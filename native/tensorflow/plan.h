// Plans: how one operator or function runs for inputs of certain types, shapes and values.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/program.h"
#include "tensorflow/storage.h"

namespace npu::tf {

// Where an operand of a program, or a result of a function, comes from or goes to.
struct Port {
  enum class Kind { Input, Variable, Output, Constant, Random };
  Kind kind = Kind::Input;
  int index = 0;
};

// One output of the program: a result of the function, or the new value of a variable.
struct ProgramOutput {
  Port port;
  int dtype = 0;
  Shape shape;
  bool aliased = false;  // of a variable: may be written over the memory the program reads it from
};

// A result that the program does not compute.
struct OtherResult {
  int result = 0;
  Port port;
  std::shared_ptr<Storage> constant;
};

// A variable whose value is part of the program.
struct BoundVariable {
  int input = 0;
  std::uint64_t version = 0;
  std::shared_ptr<Storage> value;  // of a passing variable, whose version is its address
};

// A generator whose counter is an input of the program; a call moves it on. Its upper half begins at `high`,
// without a seed at a random number.
struct RandomCounter {
  std::string name;
  std::optional<std::uint64_t> high;
  std::uint64_t step = 0;
};

// An input of a step, or a result of the whole: one of the function's inputs, or a result of an earlier step.
struct StepSource {
  int step = -1;  // -1: an input of the function
  int index = 0;
};

// Variables of several NPUs that must have the same value, by the function's inputs.
struct Mirrored {
  int own = 0;
  std::vector<int> others;
  bool written = false;  // then all have the memory of the first
};

// What an NPU runs in place of a step where the mirrored variables have the same values: its share of what
// all NPUs would compute alike.
struct StepShare {
  std::string function;
  std::vector<StepSource> inputs;
  std::vector<Mirrored> mirrored;
};

// A function that is called as a part of another.
struct FunctionStep {
  std::string function;
  std::vector<StepSource> inputs;
  int results = 0;
  int device = -1;  // the NPU that runs it; -1: the one that runs the whole
  int stage = -1;   // steps of one stage follow one another and run at the same time; -1: alone
  std::optional<StepShare> share = std::nullopt;  // all steps of a stage have one, or none
};

// An input of a loop or branch: an input of the function, or a constant.
struct StructureInput {
  int index = 0;
  std::shared_ptr<Storage> constant;
};

// A loop or branch that calls functions, each with a plan of its own, as its condition says.
struct Structure {
  enum class Kind { None, Loop, Branch };
  Kind kind = Kind::None;
  // Of a loop: its condition and its body. Of a branch: what to call for a first input of 0 (or false), 1
  // (or true) and so on; the last for all other values.
  std::vector<std::string> functions;
  std::vector<StructureInput> inputs;
  std::vector<int> results;  // which of what it makes the function returns
  int made = 0;              // how many tensors it makes
};

// An operator that the host runs in place of a function that consists of it alone, which takes less time.
struct HostOperator {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attrs;  // with values as TensorFlow serialises them
  std::vector<int> inputs;                                 // of the function
  int made = 0;
  std::vector<int> results;  // which of what it makes the function returns
};

// A program of a GPU, on addresses of its memory; it runs in the order of the GPU's stream for tensors.
class GpuProgram {
 public:
  virtual ~GpuProgram() = default;
  virtual ShapeReport run(int device, const std::vector<std::uint64_t>& inputs,
                          const std::vector<std::uint64_t>& outputs) = 0;
  virtual std::size_t input_bytes(std::size_t index) const = 0;
};

// Where an operand of a program is: the contents of a tensor, or memory of the host.
struct Place {
  Storage* storage = nullptr;
  void* host = nullptr;
  std::size_t bytes = 0;  // of the host's memory

  void* data() const { return storage ? storage->data() : host; }
};

struct FunctionPlan {
  FunctionPlan() = default;
  FunctionPlan(FunctionPlan&& other) noexcept;  // before it is used

  std::string name;
  // On the NPU: a program. In turns: steps, each with a plan of its own. As values say: a structure.
  // Otherwise the host runs a function, or the operator itself where there is no name.
  std::shared_ptr<Program> program;
  std::shared_ptr<GpuProgram> gpu;  // instead, where the NPU is a GPU
  std::vector<FunctionStep> steps;
  std::vector<StepSource> step_results;
  Structure structure;
  std::string host_function;
  std::vector<std::string> host_functions;  // instead, for NPUs 1, 2, ...: its parts run on the caller's NPU
  std::shared_ptr<const HostOperator> host_operator;
  bool escapes = false;  // the host function keeps its resources

  std::vector<Port> inputs;
  std::vector<ProgramOutput> outputs;
  std::vector<OtherResult> others;
  std::vector<BoundVariable> bound;
  std::vector<RandomCounter> random;
  bool moves_counters = false;   // outputs are new counters
  std::vector<int> specialised;  // inputs whose values are part of the program
  std::vector<int> watched;      // variables that may be bound once they have settled
  int patience = 0;              // calls without a change after which they have
  std::int64_t layout = 0;       // of what a part leaves to another: a number that Python gave it

  bool on_npu() const { return program || gpu; }
  std::size_t input_bytes(std::size_t index) const {
    return gpu ? gpu->input_bytes(index) : program->input_bytes(index);
  }
  // Runs the program on a device. What is in memory of the host is copied to a GPU; what a GPU writes stays
  // there until somebody asks for it.
  ShapeReport run(const std::vector<Place>& inputs, const std::vector<Place>& outputs,
                  npu::Device& device) const;

  // Whether the watched variables have not changed for `patience` calls.
  bool settled(const std::vector<Variable*>& variables);

 private:
  std::mutex mutex_;
  std::vector<std::uint64_t> seen_;  // versions of the watched variables
  int quiet_calls_ = 0;
};

// The counters of one function or session, by name; they outlive plans, which differ in shapes and results
// but draw from the same generators.
class Generators {
 public:
  // The counters of a call: low and high half of each.
  struct Drawn {
    std::vector<std::uint64_t> counters;
    std::unique_lock<std::mutex> lock;  // held where the program itself moves counters
  };
  // Moves all counters on for the next call. Those of a program that moves some itself stay locked for
  // `move`.
  Drawn draw(const FunctionPlan& plan);
  // Moves a counter to where the program says.
  void move(Drawn& drawn, const FunctionPlan& plan, int index, std::uint64_t low);
  // Back to where they began.
  void reset();

 private:
  struct Counter {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
  };
  static void advance(Counter& counter, std::uint64_t step);
  std::mutex mutex_;
  std::unordered_map<std::string, Counter> counters_;
};

}  // namespace npu::tf
