// Direct calls of AI CPU kernels for Python.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "aicpu/foreign.h"
#include "core/errors.h"
#include "python/convert.h"
#include "python/module.h"

namespace npu::python {
namespace {

using namespace nb::literals;

// Operands arrive as (array, dtype, shape).
std::vector<aicpu::Tensor> to_tensors(nb::handle operands, bool writable, std::vector<HeldBuffer>& held) {
  std::vector<aicpu::Tensor> tensors;
  for (nb::handle operand : operands) {
    aicpu::Tensor tensor{parse_dtype(nb::cast<std::string>(operand[1])), to_dims(operand[2]), nullptr};
    held.emplace_back(nb::object(operand[0]), writable, writable ? "output" : "input", tensors.size());
    tensor.data = held.back().data();
    if (held.back().size() < tensor.bytes()) throw InvalidArgument("an array is smaller than its shape says");
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

nb::list run_aicpu(const std::string& op, nb::handle inputs, nb::handle outputs, const nb::dict& attrs) {
  std::vector<HeldBuffer> held;
  std::vector<aicpu::Tensor> ins = to_tensors(inputs, false, held);
  std::vector<aicpu::Tensor> outs = to_tensors(outputs, true, held);
  aicpu::Call call(std::move(ins), std::move(outs), to_attrs(attrs));
  const aicpu::KernelFn kernel = aicpu::find_kernel_for(op, call);
  if (!kernel) throw Unsupported("there is no AI CPU kernel '" + op + "'");
  aicpu::Status status;
  {
    const nb::gil_scoped_release unlocked;
    status = aicpu::invoke(kernel, call);
  }
  if (!status.is_ok()) throw TaskError(op, status.message(), status.kind());
  nb::list shapes;
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    shapes.append(from_dims(call.reported[i] ? call.actual[i] : call.outputs[i].dims));
  }
  return shapes;
}

}  // namespace

void bind_aicpu(nb::module_& m) {
  m.def("run_aicpu", &run_aicpu, "op"_a, "inputs"_a, "outputs"_a, "attrs"_a,
        "Runs a kernel on (array, dtype, shape) operands; returns the actual shapes of the outputs.");
  m.def("aicpu_kernels", &aicpu::kernel_names);
  m.def("load_kernels", &aicpu::load_foreign, "path"_a, "package"_a,
        "Loads a library of custom AI CPU kernels; returns the names of its kernels.");
}

}  // namespace npu::python
