// Registry of AI CPU kernels.
#include "aicpu/kernel.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "aicpu/foreign.h"

namespace npu::aicpu {
namespace {

struct Entry {
  std::string_view name;
  KernelFn function;
};

std::vector<Entry>& entries() {
  static std::vector<Entry> list;
  return list;
}

}  // namespace

const Tensor* Call::given(std::size_t position) const {
  const Dims present = attrs.integers("present", {});
  std::size_t index = position;
  for (std::size_t i = 0; i < std::min(position + 1, present.size()); ++i) {
    if (present[i]) continue;
    if (i == position) return nullptr;
    --index;
  }
  return index < inputs.size() ? &inputs[index] : nullptr;
}

void Call::set_shape(std::size_t output, Dims dims) {
  Tensor whole = outputs[output];
  Tensor part = whole;
  part.dims = dims;
  char* begin = whole.as<char>();
  if (part.bytes() < whole.bytes()) std::memset(begin + part.bytes(), 0, whole.bytes() - part.bytes());
  actual[output] = std::move(dims);
  reported[output] = 1;
}

Status Call::expect(std::size_t inputs_wanted, std::size_t outputs_wanted) const {
  if (inputs.size() == inputs_wanted && outputs.size() == outputs_wanted) return Status::ok();
  return Status::error("takes " + std::to_string(inputs_wanted) + " inputs and " +
                       std::to_string(outputs_wanted) + " outputs, given " + std::to_string(inputs.size()) +
                       " and " + std::to_string(outputs.size()));
}

KernelFn find_kernel(std::string_view name) {
  for (const Entry& entry : entries()) {
    if (entry.name == name) return entry.function;
  }
  return nullptr;
}

KernelFn find_kernel_for(std::string_view name, Call& call) {
  const KernelFn own = find_kernel(name);
  if (own) return own;
  call.foreign = find_foreign(name);
  return call.foreign ? &run_foreign : nullptr;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) names.emplace_back(entry.name);
  std::sort(names.begin(), names.end());
  return names;
}

Status invoke(KernelFn kernel, Call& call) {
  std::fill(call.reported.begin(), call.reported.end(), 0);
  try {
    return kernel(call);
  } catch (const std::exception& error) {
    return Status::error(error.what());
  } catch (...) {
    return Status::error("it threw something that is no exception");
  }
}

Registrar::Registrar(const char* name, KernelFn function) { entries().push_back({name, function}); }

}  // namespace npu::aicpu
