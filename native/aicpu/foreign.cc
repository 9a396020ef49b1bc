// Loads libraries of custom kernels and calls them through their C interface.
#include "aicpu/foreign.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "../../src/ge/opp/include/npu_opp_abi.h"
#include "core/errors.h"
#include "core/parallel.h"

namespace npu::aicpu {

struct ForeignKernel {
  std::string name;
  NpuOppRunFn run = nullptr;
  std::uint64_t index = 0;
};

namespace {

// Kernels are never unloaded: programs refer to them.
struct Libraries {
  std::mutex lock;
  std::deque<ForeignKernel> kernels;
  std::map<std::string, const ForeignKernel*, std::less<>> by_name;
  std::map<std::string, std::vector<std::string>> by_path;
};

Libraries& libraries() {
  static Libraries all;
  return all;
}

template <class Function>
Function symbol(void* library, const char* name, const std::string& path) {
  void* found = dlsym(library, name);
  if (!found) throw InvalidArgument(path + " is not a library of AI CPU kernels: it has no " + name);
  return reinterpret_cast<Function>(found);
}

// The numbers of aicpu::DataType, in the order of DType.
constexpr std::array<std::int32_t, kDTypeCount> kNumbers = {0, 11, 1, 27, 2, 6, 3, 9, 4, 7, 8, 10, 12};

struct AttrStore {
  std::deque<std::int64_t> integers;
  std::deque<const char*> texts;
  std::deque<std::vector<const char*>> lists;
  std::vector<NpuOppAttr> attrs;

  void add(const std::string& name, const AttrValue& value) {
    std::visit([&](const auto& v) { put(name.c_str(), v); }, value);
  }

 private:
  void put(const char* name, bool v) { attrs.push_back({name, NPU_OPP_BOOL, 1, &integers.emplace_back(v)}); }
  void put(const char* name, const std::int64_t& v) { attrs.push_back({name, NPU_OPP_INT, 1, &v}); }
  void put(const char* name, const double& v) { attrs.push_back({name, NPU_OPP_FLOAT, 1, &v}); }
  void put(const char* name, const std::string& v) {
    attrs.push_back({name, NPU_OPP_STRING, 1, &texts.emplace_back(v.c_str())});
  }
  void put(const char* name, const std::vector<std::int64_t>& v) {
    attrs.push_back({name, NPU_OPP_INTS, static_cast<std::int64_t>(v.size()), v.data()});
  }
  void put(const char* name, const std::vector<double>& v) {
    attrs.push_back({name, NPU_OPP_FLOATS, static_cast<std::int64_t>(v.size()), v.data()});
  }
  void put(const char* name, const std::vector<std::string>& v) {
    std::vector<const char*>& list = lists.emplace_back();
    for (const std::string& text : v) list.push_back(text.c_str());
    attrs.push_back({name, NPU_OPP_STRINGS, static_cast<std::int64_t>(v.size()), list.data()});
  }
  void put(const char*, const std::shared_ptr<KernelObject>&) {}
};

NpuOppTensor plain(const Tensor& tensor) {
  return {kNumbers[static_cast<std::size_t>(tensor.dtype)], static_cast<std::int32_t>(tensor.rank()),
          tensor.dims.data(), tensor.data, tensor.bytes()};
}

// The inputs by their positions in the operator's own list.
std::vector<NpuOppTensor> inputs_of(const Call& call) {
  const Dims present = call.attrs.integers("present", {});
  std::vector<NpuOppTensor> inputs;
  std::size_t next = 0;
  for (const std::int64_t there : present) {
    inputs.push_back(there && next < call.inputs.size() ? plain(call.inputs[next++]) : NpuOppTensor{});
  }
  while (next < call.inputs.size()) inputs.push_back(plain(call.inputs[next++]));
  return inputs;
}

// An output with the name of an input is that input, changed: a kernel finds the input's elements in the
// memory of the output, under both names. Attribute "_shared": for each output the position of that input, or
// -1.
void share_memory(const Call& call, std::vector<NpuOppTensor>& inputs,
                  const std::vector<NpuOppTensor>& outputs) {
  const Dims shared = call.attrs.integers("_shared", {});
  for (std::size_t i = 0; i < std::min(shared.size(), outputs.size()); ++i) {
    if (shared[i] < 0 || shared[i] >= static_cast<std::int64_t>(inputs.size())) continue;
    NpuOppTensor& input = inputs[static_cast<std::size_t>(shared[i])];
    if (!input.data || input.nbytes != outputs[i].nbytes) continue;
    if (input.data != outputs[i].data) std::memcpy(outputs[i].data, input.data, input.nbytes);
    input.data = outputs[i].data;
  }
}

void set_shape(void* runtime, std::uint64_t output, const std::int64_t* dims, std::int32_t rank) {
  Call& call = *static_cast<Call*>(runtime);
  if (output < call.outputs.size() && rank >= 0) call.set_shape(output, Dims(dims, dims + rank));
}

void run_parallel(void*, std::int64_t total, std::int64_t grain, NpuOppRange range, void* work) {
  parallel_for(total, grain, [&](std::int64_t begin, std::int64_t end) { range(work, begin, end); });
}

Status check_shapes(const Call& call, const std::string& name) {
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    if (!call.reported[i]) continue;
    const Tensor actual{call.outputs[i].dtype, call.actual[i], nullptr};
    const bool negative = std::any_of(actual.dims.begin(), actual.dims.end(), [](auto d) { return d < 0; });
    if (negative || actual.bytes() > call.outputs[i].bytes()) {
      return Status::error(name + " gives output " + std::to_string(i) + " the shape " +
                           to_string(call.actual[i]) + ", at most " + to_string(call.outputs[i].dims) +
                           " was expected");
    }
  }
  return Status::ok();
}

}  // namespace

std::vector<std::string> load_foreign(const std::string& path, const std::string& package) {
  Libraries& all = libraries();
  const std::lock_guard<std::mutex> guard(all.lock);
  if (const auto known = all.by_path.find(path); known != all.by_path.end()) return known->second;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw InvalidArgument(std::string("the library of kernels cannot be loaded: ") + dlerror());
  const std::uint32_t version = symbol<NpuOppVersionFn>(library, "npu_opp_abi_version", path)();
  if (version != NPU_OPP_ABI_VERSION) {
    throw InvalidArgument(path + " was built for version " + std::to_string(version) +
                          " of the kernel interface, this runtime has " +
                          std::to_string(NPU_OPP_ABI_VERSION) + ": build the package again");
  }
  const auto run = symbol<NpuOppRunFn>(library, "npu_opp_kernel_run", path);
  const auto name = symbol<NpuOppNameFn>(library, "npu_opp_kernel_name", path);
  const std::uint64_t count = symbol<NpuOppCountFn>(library, "npu_opp_kernel_count", path)();
  std::vector<std::string> names;
  for (std::uint64_t i = 0; i < count; ++i) {
    names.push_back("opp:" + package + "/" + name(i));
    all.kernels.push_back({names.back(), run, i});
    all.by_name[names.back()] = &all.kernels.back();
  }
  all.by_path[path] = names;
  return names;
}

const ForeignKernel* find_foreign(std::string_view name) {
  Libraries& all = libraries();
  const std::lock_guard<std::mutex> guard(all.lock);
  const auto found = all.by_name.find(name);
  return found == all.by_name.end() ? nullptr : found->second;
}

Status run_foreign(Call& call) {
  std::vector<NpuOppTensor> inputs = inputs_of(call), outputs;
  for (const Tensor& tensor : call.outputs) outputs.push_back(plain(tensor));
  share_memory(call, inputs, outputs);
  AttrStore store;
  for (const auto& [name, value] : call.attrs) store.add(name, value);
  std::array<char, 1024> message{};
  NpuOppCall plain_call{inputs.size(),  outputs.size(),     store.attrs.size(),    inputs.data(),
                        outputs.data(), store.attrs.data(), omp_get_max_threads(), &call,
                        &set_shape,     &run_parallel,      message.data(),        message.size() - 1};
  const std::uint32_t status = call.foreign->run(call.foreign->index, &plain_call);
  if (status != 0) {
    const std::string why = message[0] ? std::string(": ") + message.data() : "";
    return Status::error("kernel " + call.foreign->name + " returned status " + std::to_string(status) + why);
  }
  return check_shapes(call, call.foreign->name);
}

}  // namespace npu::aicpu
