// Decoding of plans. Reading trusts nothing: sizes, views and references are checked, as in
// ge/model/codec.py.
#include "model/package.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>
#include <sstream>

#include "model/error.h"
#include "model/sha256.h"

namespace npu {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 46;
constexpr std::int64_t kMaxCount = 1 << 24;
constexpr std::size_t kMaxRankInFile = 32, kMaxPlans = 128, kAlign = 64;
constexpr int kMaxNesting = 64;

using Kind = Buffer::Kind;
constexpr std::pair<std::string_view, Kind> kBuffers[] = {
    {"arena", Kind::Arena}, {"constant", Kind::Constant}, {"input", Kind::Input}, {"output", Kind::Output}};

// Tasks whose views may have any strides; all others read and write their tensors contiguously.
constexpr std::string_view kStrided[] = {"matmul",  "conv", "deconv", "pool",
                                         "reorder", "lrn",  "rnn",    "check"};
constexpr std::string_view kBlockAttributes[] = {"then_block", "else_block", "body_block"};

std::string numbered(const std::string& what, const char* list, std::size_t i) {
  return what + (what.empty() ? "" : ".") + list + "[" + std::to_string(i) + "]";
}

DType read_dtype(const Json& value, const std::string& what) {
  try {
    return parse_dtype(value.text(what, 64));
  } catch (const std::invalid_argument&) {
    throw malformed(what, "has element type '" + value.text(what, 64) + "'");
  }
}

Dims read_dims(const Json& value, const std::string& what) {
  Dims dims;
  std::int64_t size = 1;
  bool empty = false;
  for (const Json& item : value.items(what, kMaxRankInFile)) {
    dims.push_back(item.integer(what));
    empty |= dims.back() == 0;
  }
  for (const std::int64_t dim : dims) {
    if (!empty && __builtin_mul_overflow(size, dim, &size)) size = kMaxBytes + 1;
    if (size > kMaxBytes) throw malformed(what, "describes an impossibly large tensor");
  }
  return dims;
}

std::int64_t element_count(const Dims& dims) {
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;  // others may have any size
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

Port read_port(const Json& data, const std::string& what) {
  Port port;
  port.dims = read_dims(data.at("shape", what), what);
  port.dtype = read_dtype(data.at("dtype", what), what);
  port.name = data.at("name", what).text(what, 4096);
  port.format = data.at("format", what).text(what, 64);
  const Json& dynamic = data.at("dynamic", what);
  port.dynamic = dynamic.boolean() && *dynamic.boolean();
  return port;
}

std::vector<Port> read_ports(const Json& data, const char* side, const std::string& what) {
  std::vector<Port> ports;
  for (const Json& item : data.at(side, what).items(what)) {
    ports.push_back(read_port(item, numbered(what, side, ports.size())));
  }
  return ports;
}

std::vector<Bytes> read_constants(const Json& table, Bytes weights) {
  std::vector<Bytes> constants;
  for (const Json& entry : table.items("constants")) {
    const std::string what = numbered("", "constants", constants.size());
    const Dims dims = read_dims(entry.at("shape", what), what);
    const DType dtype = read_dtype(entry.at("dtype", what), what);
    const auto bytes = static_cast<std::size_t>(element_count(dims)) * dtype_size(dtype);
    const auto offset = static_cast<std::size_t>(entry.at("offset", what).integer(what));
    if (offset % kAlign || offset > weights.size() || bytes > weights.size() - offset) {
      throw malformed(what, "is outside the weights");
    }
    constants.push_back(weights.subspan(offset, bytes));
  }
  return constants;
}

// The name of processors with this one's instruction set (ge.model.kernels.machine).
std::string machine() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("flags") && !line.starts_with("Features"))
    line.clear();
  const char* limit = std::getenv("NPU_MAX_ISA");
  const std::string limited = limit ? limit : "";
  if (limited == "sse4" || limited == "avx2" || limited == "avx512") line += " " + limited;
  std::istringstream words(line);
  std::vector<std::string> flags{std::istream_iterator<std::string>(words), {}};
  std::sort(flags.begin(), flags.end());
  std::string joined;
  for (const std::string& flag : flags) joined += (joined.empty() ? "" : " ") + flag;
  const Digest digest = sha256(std::as_bytes(std::span(joined)));
  utsname system;
  uname(&system);
  std::ostringstream name;
  name << "host:" << system.machine << "-" << std::hex;
  for (std::size_t i = 0; i < 6; ++i) name << (digest[i] >> 4) << (digest[i] & 15);
  return name.str();
}

std::vector<KernelCode> read_kernels(const Json& table, Bytes objects, bool trusted) {
  const std::string own = machine();
  std::vector<KernelCode> kernels;
  for (const Json& entry : table.items("kernels")) {
    const std::string what = numbered("", "kernels", kernels.size());
    KernelCode kernel{entry.at("symbol", what).text(what, 1024), {}};
    for (const auto& [target, place] : entry.at("objects", what).members(what)) {
      const Json::List& pair = place.exactly(2, what);
      const auto offset = static_cast<std::size_t>(pair[0].integer(what));
      const auto size = static_cast<std::size_t>(pair[1].integer(what));
      if (offset > objects.size() || size > objects.size() - offset) {
        throw malformed(what, "is outside the machine code");
      }
      const bool fits = target == own || (target == "portable" && kernel.code.empty());
      if (trusted && fits) kernel.code = objects.subspan(offset, size);
    }
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

// -- plans

class PlanReader {
 public:
  PlanReader(const Json& data, std::string what) : data_(data), what_(std::move(what)) {}

  Plan read(const std::vector<Bytes>& constants, std::size_t kernels) {
    plan_.name = field("name").text(what_ + ".name", 4096);
    plan_.inputs = read_ports(data_, "inputs", what_);
    plan_.outputs = read_ports(data_, "outputs", what_);
    plan_.blocks = static_cast<int>(field("blocks").integer(what_ + ".blocks", 1, kMaxCount));
    plan_.arena_bytes = static_cast<std::size_t>(field("arena_bytes").integer(what_ + ".arena_bytes"));
    plan_.steps = static_cast<int>(field("steps").integer(what_ + ".steps", 1, kMaxCount));
    for (const std::int64_t i : places("constants", constants.size())) {
      plan_.constants.push_back(constants[static_cast<std::size_t>(i)]);
    }
    for (const std::int64_t i : places("kernels", kernels)) plan_.kernels.push_back(static_cast<int>(i));
    field("report").members(what_ + ".report");
    plan_.report = field("report");
    read_donated();
    read_buffers();
    check_ports();
    check_donated();
    for (const Json& task : field("tasks").items(what_)) {
      plan_.tasks.push_back(read_task(task, numbered(what_, "tasks", plan_.tasks.size())));
    }
    check_blocks();
    return std::move(plan_);
  }

 private:
  const Json& field(std::string_view name) const { return data_.at(name, what_); }

  std::vector<std::int64_t> places(const char* list, std::size_t count) const {
    std::vector<std::int64_t> found;
    for (const Json& item : field(list).items(what_)) {
      found.push_back(item.integer(what_ + "." + list, 0, static_cast<std::int64_t>(count) - 1));
    }
    return found;
  }

  void read_donated() {
    for (const Json& item : field("donated").items(what_)) {
      const std::string what = what_ + ".donated";
      const Json::List& pair = item.exactly(2, what);
      plan_.donated.emplace_back(pair[0].integer(what, 0, kMaxCount), pair[1].integer(what, 0, kMaxCount));
    }
  }

  void read_buffers() {
    for (const Json& item : field("buffers").items(what_)) {
      plan_.buffers.push_back(read_buffer(item, numbered(what_, "buffers", plan_.buffers.size())));
    }
  }

  Buffer read_buffer(const Json& data, const std::string& what) const {
    const Json::List& parts = data.exactly(4, what);
    const std::string& name = parts[0].text(what, 64);
    const auto* kind = std::find_if(std::begin(kBuffers), std::end(kBuffers),
                                    [&](const auto& known) { return known.first == name; });
    if (kind == std::end(kBuffers)) throw malformed(what, "is of kind '" + name + "'");
    Buffer buffer;
    buffer.kind = kind->second;
    buffer.nbytes = static_cast<std::size_t>(parts[1].integer(what));
    buffer.offset = static_cast<std::size_t>(parts[2].integer(what));
    buffer.index = static_cast<int>(parts[3].integer(what, 0, kMaxCount));
    if (buffer.kind == Kind::Arena) {
      if (buffer.offset + buffer.nbytes > plan_.arena_bytes) throw malformed(what, "is outside the arena");
    } else if (static_cast<std::size_t>(buffer.index) >= count_of(buffer.kind) ||
               buffer.nbytes > bytes_of(buffer.kind, buffer.index)) {
      throw malformed(what, "does not match the model's " + name + "s");
    }
    return buffer;
  }

  std::size_t count_of(Kind kind) const {
    return kind == Kind::Constant ? plan_.constants.size() : ports(kind).size();
  }

  std::size_t bytes_of(Kind kind, int index) const {
    const auto at = static_cast<std::size_t>(index);
    return kind == Kind::Constant ? plan_.constants[at].size() : ports(kind)[at].bytes();
  }

  const std::vector<Port>& ports(Kind kind) const {
    return kind == Kind::Input ? plan_.inputs : plan_.outputs;
  }

  // Each input and output has one buffer: all of it, or its part of one step. Steps advance something.
  void check_ports() const {
    bool advancing = plan_.steps == 1;
    for (const Kind kind : {Kind::Input, Kind::Output}) {
      const std::string side = kind == Kind::Input ? "input" : "output";
      std::vector<int> seen(ports(kind).size());
      for (const Buffer& buffer : plan_.buffers) {
        if (buffer.kind != kind) continue;
        ++seen[static_cast<std::size_t>(buffer.index)];
        const std::size_t whole = bytes_of(kind, buffer.index);
        if (whole != buffer.nbytes && whole != buffer.nbytes * static_cast<std::size_t>(plan_.steps)) {
          throw malformed(what_,
                          "does not cover " + side + " " + std::to_string(buffer.index) + " in its steps");
        }
        advancing |= buffer.nbytes > 0 && buffer.nbytes < whole;
      }
      if (std::any_of(seen.begin(), seen.end(), [](int count) { return count != 1; })) {
        throw malformed(what_, "must have one buffer for each " + side);
      }
    }
    if (!advancing) throw malformed(what_, "repeats its steps over the same data");
  }

  // Each output takes the memory of at most one input, of its own size, which no other output takes.
  void check_donated() const {
    std::set<int> outputs, inputs;
    for (const auto& [output, input] : plan_.donated) {
      if (!outputs.insert(output).second || !inputs.insert(input).second) {
        throw malformed(what_, "donates something twice");
      }
      const auto out = static_cast<std::size_t>(output), in = static_cast<std::size_t>(input);
      if (out >= plan_.outputs.size() || in >= plan_.inputs.size()) {
        throw malformed(what_, "donates what it does not have");
      }
      if (plan_.outputs[out].dims != plan_.inputs[in].dims ||
          plan_.outputs[out].dtype != plan_.inputs[in].dtype) {
        throw malformed(what_, "donates input " + std::to_string(input) + " to an output of another size");
      }
    }
    if (!plan_.donated.empty() && plan_.steps > 1) {
      throw malformed(what_, "repeats steps over donated inputs");
    }
  }

  PlanTask read_task(const Json& data, const std::string& what) const {
    PlanTask result;
    TaskDef& task = result.task;
    task.kind = data.at("kind", what).text(what, 64);
    task.name = data.at("name", what).text(what);
    const bool strided = std::find(std::begin(kStrided), std::end(kStrided), task.kind) != std::end(kStrided);
    for (const Json& view : data.at("inputs", what).items(what)) {
      task.inputs.push_back(read_view(view, strided, false, numbered(what, "inputs", task.inputs.size())));
    }
    for (const Json& view : data.at("outputs", what).items(what)) {
      task.outputs.push_back(read_view(view, strided, true, numbered(what, "outputs", task.outputs.size())));
    }
    task.block = static_cast<int>(data.at("block", what).integer(what + ".block", 0, plan_.blocks - 1));
    const Json& attrs = data.at("attrs", what);
    for (const auto& [name, value] : attrs.members(what)) {
      if (name == "kernel" && task.kind == "kernel") continue;
      if (!value.is_null()) task.attrs.set(name, read_attribute(value, what + "." + name));
    }
    if (task.kind == "kernel") {
      result.kernel = static_cast<int>(
          attrs.at("kernel", what)
              .integer(what + ".kernel", 0, static_cast<std::int64_t>(plan_.kernels.size()) - 1));
    }
    for (const Json& name : data.at("origin", what).items(what)) {
      result.origin += (result.origin.empty() ? "" : ", ") + name.text(what);
    }
    const Json* shown = attrs.find("operator");
    if (!shown || !shown->string() || shown->string()->empty()) shown = attrs.find("op");
    if (shown && shown->string()) result.operator_name = *shown->string();
    return result;
  }

  View read_view(const Json& data, bool strided, bool written, const std::string& what) const {
    const Json::List& parts = data.exactly(5, what);
    View view;
    view.buffer =
        static_cast<int>(parts[0].integer(what, 0, static_cast<std::int64_t>(plan_.buffers.size()) - 1));
    view.dtype = read_dtype(parts[1], what);
    view.dims = read_dims(parts[2], what);
    for (const Json& stride : parts[3].exactly(view.dims.size(), what)) {
      view.strides.push_back(stride.integer(what));
    }
    view.offset = parts[4].integer(what);
    const Buffer& buffer = plan_.buffers[static_cast<std::size_t>(view.buffer)];
    if (written && (buffer.kind == Kind::Input || buffer.kind == Kind::Constant)) {
      throw malformed(what, "may not be written to");
    }
    if (reach(view, strided, what) > buffer.nbytes / dtype_size(view.dtype)) {
      throw malformed(what, "reaches beyond its buffer of " + std::to_string(buffer.nbytes) + " bytes");
    }
    return view;
  }

  // One past the last element that a task may touch through a view.
  static std::size_t reach(const View& view, bool strided, const std::string& what) {
    const std::int64_t size = element_count(view.dims);
    if (!size) return 0;
    std::int64_t last = 1;
    for (std::size_t i = 0; i < view.dims.size(); ++i) {
      std::int64_t span = 0;
      if (__builtin_mul_overflow(view.dims[i] - 1, view.strides[i], &span) ||
          __builtin_add_overflow(last, span, &last)) {
        throw malformed(what, "has impossible strides");
      }
    }
    if (!strided) last = std::max(last, size);
    if (__builtin_add_overflow(last, view.offset, &last)) throw malformed(what, "has an impossible offset");
    return static_cast<std::size_t>(last);
  }

  static AttrValue read_attribute(const Json& value, const std::string& what) {
    if (const bool* flag = value.boolean()) return *flag;
    if (const std::int64_t* number = value.whole()) return *number;
    if (const double* number = value.real()) return *number;
    if (value.string()) return value.text(what);
    std::vector<std::int64_t> integers;
    std::vector<double> reals;
    std::vector<std::string> texts;
    const Json::List& items = value.items(what);
    for (const Json& item : items) {
      if (item.string()) {
        texts.push_back(item.text(what));
      } else if (const bool* flag = item.boolean()) {
        integers.push_back(*flag);
        reals.push_back(*flag);
      } else if (const std::int64_t* number = item.whole()) {
        integers.push_back(*number);
        reals.push_back(static_cast<double>(*number));
      } else if (const double* real = item.real()) {
        reals.push_back(*real);
      }
    }
    if (!items.empty() && texts.size() == items.size()) return texts;
    if (integers.size() == items.size()) return integers;
    if (reals.size() == items.size()) return reals;
    throw malformed(what, "mixes strings and numbers");
  }

  // Nested task lists form a tree: each has one parent.
  void check_blocks() const {
    if (static_cast<std::size_t>(plan_.blocks) > 1 + 2 * plan_.tasks.size()) {
      throw malformed(what_ + ".blocks", "are more than the tasks can enter");
    }
    std::map<std::int64_t, int> parent;
    for (const PlanTask& item : plan_.tasks) {
      for (const std::string_view name : kBlockAttributes) {
        if (!item.task.attrs.has(name)) continue;
        const std::int64_t block = item.task.attrs.integer(name);
        if (block == -1) continue;
        const std::string what = what_ + "." + item.task.name + "." + std::string(name);
        if (block < 1 || block >= plan_.blocks) throw malformed(what, "is not the number of a block");
        if (!parent.emplace(block, item.task.block).second) {
          throw malformed(what, "is entered from two places");
        }
      }
    }
    for (const auto& [start, above] : parent) {
      std::int64_t block = above;
      for (int depth = 1; parent.contains(block); block = parent.at(block)) {
        if (++depth > kMaxNesting) throw malformed(what_ + ".blocks", "nest too deeply or in a circle");
      }
    }
  }

  const Json& data_;
  std::string what_;
  Plan plan_;
};

std::optional<Gears> read_gears(const Json& data) {
  if (data.is_null()) return {};
  constexpr std::pair<std::string_view, Gears::Kind> kKinds[] = {
      {"batch", Gears::Kind::Batch}, {"image_size", Gears::Kind::ImageSize}, {"dims", Gears::Kind::Dims}};
  Gears gears;
  const std::string& name = data.at("kind", "gears").text("gears.kind", 64);
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const auto& known) { return known.first == name; });
  if (kind == std::end(kKinds)) throw malformed("gears", "are of an unknown kind");
  gears.kind = kind->second;
  for (const auto& [input, shape] : data.at("inputs", "gears").members("gears.inputs")) {
    Dims dims;
    for (const Json& dim : shape.items("gears", 64)) dims.push_back(dim.integer("gears", -1));
    gears.inputs.emplace_back(input, std::move(dims));
  }
  for (const Json& choice : data.at("choices", "gears").items("gears.choices", kMaxPlans)) {
    Dims values;
    for (const Json& value : choice.items("gears", 256)) values.push_back(value.integer("gears", 1));
    gears.choices.push_back(std::move(values));
  }
  return gears;
}

bool same_ports(const std::vector<Port>& a, const std::vector<Port>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Port& x, const Port& y) {
    return x.name == y.name && x.dtype == y.dtype && x.dims.size() == y.dims.size();
  });
}

// All plans of a file have the same ports and different input shapes.
void check_plans(const std::vector<Plan>& plans, const std::optional<Gears>& gears) {
  if (plans.empty() || plans.size() != (gears ? gears->choices.size() : 1)) {
    throw malformed("the model", "has " + std::to_string(plans.size()) + " plans");
  }
  std::set<std::vector<Dims>> shapes;
  for (const Plan& plan : plans) {
    if (!same_ports(plan.inputs, plans[0].inputs) || !same_ports(plan.outputs, plans[0].outputs)) {
      throw malformed("the model", "has plans with different inputs or outputs");
    }
    std::vector<Dims> own;
    for (const Port& port : plan.inputs) own.push_back(port.dims);
    if (!shapes.insert(std::move(own)).second)
      throw malformed("the model", "has gears with equal input shapes");
  }
}

// Rejects plans that this library cannot run: GPUs, strings, operators of packages.
void check_supported(const Plan& plan, const std::string& name) {
  const Json* target = plan.report.find("target");
  const Json* target_name = target ? target->find("name") : nullptr;
  if (target_name && target_name->string() && target_name->string()->starts_with("sm_")) {
    throw ModelError(11009, name + " is for the GPU target " + *target_name->string(),
                     "compile it with atc --soc_version=cpu");
  }
  const Json* interface = plan.report.find("interface");
  if (interface && !interface->is_null()) {
    throw ModelError(11009, name + " takes or returns strings, sequences or dictionaries",
                     "run it from Python, with ge.load or acl.Model");
  }
}

}  // namespace

std::size_t Port::bytes() const { return static_cast<std::size_t>(element_count(dims)) * dtype_size(dtype); }

Loops Plan::loops() const {
  const Json* target = report.find("target");
  const Json* told = target ? target->find("loops") : nullptr;
  Loops found;
  if (!told) return found;
  const auto size = [&](std::string_view name, std::int64_t& place) {
    const Json* value = told->find(name);
    if (value && value->whole() && *value->whole() > 0) place = *value->whole();
  };
  size("l1_bytes", found.l1_bytes);
  size("l2_bytes", found.l2_bytes);
  size("last_bytes", found.last_bytes);
  const Json* wake = told->find("wake_ns");
  if (wake && wake->real() && *wake->real() > 0) found.wake_ns = *wake->real();
  return found;
}

std::vector<std::size_t> Plan::strides(Buffer::Kind kind) const {
  const std::vector<Port>& ports = kind == Kind::Input ? inputs : outputs;
  std::vector<std::size_t> result(ports.size());
  for (const Buffer& buffer : buffers) {
    if (buffer.kind != kind) continue;
    const auto at = static_cast<std::size_t>(buffer.index);
    result[at] = buffer.nbytes == ports[at].bytes() ? 0 : buffer.nbytes;
  }
  return result;
}

Package Package::read(std::shared_ptr<const FileImage> image, const std::string& name, bool trust) {
  const Contents contents = read_sections(image->bytes(), name);
  Package package;
  package.image = std::move(image);
  const Json properties = Json::parse(contents.section("properties"), "properties");
  package.gears = read_gears(properties.at("gears", "properties"));
  const Json data = Json::parse(contents.section("plans"), "plans");
  const auto constants = read_constants(data.at("constants", "plans"), contents.section("weights"));
  const Json kernels = Json::parse(contents.section("kernels"), "kernels");
  package.kernels = read_kernels(kernels, contents.section("objects"), trust || contents.sealed);
  for (const Json& plan : data.at("plans", "plans").items("plans", kMaxPlans)) {
    PlanReader reader(plan, numbered("", "plans", package.plans.size()));
    package.plans.push_back(reader.read(constants, package.kernels.size()));
    check_supported(package.plans.back(), name);
    const std::vector<int>& used = package.plans.back().kernels;
    const auto lacks = [&](int i) { return package.kernels[static_cast<std::size_t>(i)].code.empty(); };
    if (!std::any_of(used.begin(), used.end(), lacks)) continue;
    if (trust || contents.sealed) {
      throw ModelError(11009, name + " has no machine code for this processor",
                       "save it with ge.load(path).save(path) here, which makes its kernels");
    }
    throw ModelError(11009, name + " was not compiled by this user, and its machine code is not trusted",
                     "save it with ge.load(path).save(path), which makes its kernels anew, or load it as "
                     "trusted");
  }
  check_plans(package.plans, package.gears);
  return package;
}

const Plan& Package::largest() const {
  const auto bytes = [](const Plan& plan) {
    return std::accumulate(plan.inputs.begin(), plan.inputs.end(), std::size_t{0},
                           [](std::size_t sum, const Port& port) { return sum + port.bytes(); });
  };
  return *std::max_element(plans.begin(), plans.end(),
                           [&](const Plan& a, const Plan& b) { return bytes(a) < bytes(b); });
}

}  // namespace npu
