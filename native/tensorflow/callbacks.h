// What the device asks of Python: how to run an operator, a function or a part of a graph.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tensorflow/plan.h"

namespace npu::tf {

// One input as a compiler sees it.
struct Described {
  enum class Kind { Tensor, Variable, Host };
  Kind kind = Kind::Host;
  int dtype = 0;
  Shape shape;
  std::shared_ptr<Storage> storage;    // of a tensor
  std::shared_ptr<Variable> variable;  // of a variable
  std::uint64_t version = 0;           // of a variable's value; 0: it cannot be bound
};

// What is known of an operator by its name.
struct OpTraits {
  bool on_npu = false;             // worth asking for a plan
  bool attrs_from_inputs = false;  // attributes follow from the inputs' types: they need not be looked at
};

// Why Python gave no plan, as a status.
class CallbackError : public std::runtime_error {
 public:
  CallbackError(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

class Callbacks {
 public:
  virtual ~Callbacks() = default;
  virtual OpTraits classify(const std::string& op) = 0;
  // The element types of the variables among a function's inputs; 0 for other inputs.
  virtual std::vector<int> variable_types(const std::string& function) = 0;
  // The name of a function that assigns values of these types to as many variables: it is given all
  // variables, then all values.
  virtual std::string assign_function(const std::vector<int>& types) = 0;
  // These return null where the host is to run the operator or function as it is.
  virtual std::shared_ptr<FunctionPlan> compile_op(const std::string& op, std::string_view attrs,
                                                   std::vector<Described> inputs) = 0;
  virtual std::shared_ptr<FunctionPlan> compile_function(const std::string& name, std::string_view attrs,
                                                         std::vector<Described> inputs,
                                                         const std::shared_ptr<FunctionPlan>& previous,
                                                         const std::vector<int>& changed) = 0;
  virtual std::shared_ptr<FunctionPlan> compile_part(std::int64_t part, std::vector<Described> inputs) = 0;
  // The number of a part that another process has sent, for the NPU of a task of this process.
  virtual std::int64_t part_of(const std::string& definition, int task) = 0;
  // The results of a part that the host runs: one that cannot be compiled for the shapes it met.
  virtual std::vector<std::shared_ptr<Storage>> run_part(std::int64_t part,
                                                         std::vector<Described> inputs) = 0;
};

// The one in use; null until Python has set it.
Callbacks* callbacks();
void set_callbacks(std::unique_ptr<Callbacks> callbacks);

// Whether this thread is inside a callback: operators it runs then go to the host.
class InCallback {
 public:
  InCallback() { ++depth_; }
  ~InCallback() { --depth_; }
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;
  static bool active() { return depth_ > 0; }

 private:
  static thread_local int depth_;
};

}  // namespace npu::tf
