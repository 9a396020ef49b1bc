// AI CPU kernels: operators in plain C++, found by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/attrs.h"
#include "core/dtype.h"
#include "core/view.h"

namespace npu::aicpu {

// Success, or what is wrong. The kind is "index" or "division" where the data is at fault (see TaskError).
class [[nodiscard]] Status {
 public:
  static Status ok() { return {}; }
  static Status error(std::string message, std::string kind = "") {
    Status status;
    status.message_ = std::move(message);
    status.kind_ = std::move(kind);
    return status;
  }
  bool is_ok() const { return message_.empty(); }
  const std::string& message() const { return message_; }
  const std::string& kind() const { return kind_; }

 private:
  std::string message_, kind_;
};

// A dense row-major operand.
struct Tensor {
  DType dtype = DType::Float32;
  Dims dims;
  void* data = nullptr;

  std::size_t rank() const { return dims.size(); }
  std::int64_t elements() const {
    std::int64_t count = 1;
    for (const std::int64_t dim : dims) count *= dim;
    return count;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * dtype_size(dtype); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

struct ForeignKernel;  // of an operator package, see foreign.h

// One call of a kernel. An output's dims are the most it can hold; a kernel that makes less says so.
struct Call {
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  Attrs attrs;
  std::vector<Dims> actual;  // for each output; valid where `reported`
  std::vector<char> reported;
  const ForeignKernel* foreign = nullptr;  // what run_foreign runs
  // Of a task in a program, for numbers that differ from run to run: how often it ran before, and a seed that
  // no other task has.
  std::uint64_t run = 0, own_seed = 0;

  Call(std::vector<Tensor> ins, std::vector<Tensor> outs, Attrs attributes)
      : inputs(std::move(ins)),
        outputs(std::move(outs)),
        attrs(std::move(attributes)),
        actual(outputs.size()),
        reported(outputs.size(), 0) {}

  // The operand at a position of the operator's own list, nullptr when left out. Attribute "present" holds a
  // 0 for every position that has no input.
  const Tensor* given(std::size_t position) const;
  // The actual dims of an output, which is at the beginning of its memory; the rest is set to zero.
  void set_shape(std::size_t output, Dims dims);
  // Also checks the numbers of operands; kernels begin with it.
  Status expect(std::size_t inputs_wanted, std::size_t outputs_wanted) const;
};

using KernelFn = Status (*)(Call& call);

KernelFn find_kernel(std::string_view name);  // nullptr: there is none
// The same, also for kernels of packages, which the call is prepared for.
KernelFn find_kernel_for(std::string_view name, Call& call);
std::vector<std::string> kernel_names();

// Runs a kernel; whatever it throws becomes a status.
Status invoke(KernelFn kernel, Call& call);

class Registrar {
 public:
  Registrar(const char* name, KernelFn function);
};

#define NPU_AICPU_KERNEL(name, function) \
  static const ::npu::aicpu::Registrar function##_registrar(name, &function)

}  // namespace npu::aicpu
