// Primitive steps, descriptors and reorders.
#include "onednn/primitive.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/errors.h"
#include "onednn/engine.h"
#include "threads/invalid.h"

namespace npu {
namespace {

using DataType = dnnl::memory::data_type;
using Arguments = std::vector<dnnl_exec_arg_t>;

class BoundPrimitive : public BoundStep {
 public:
  BoundPrimitive(dnnl_primitive_t primitive, Arguments args, int team, const std::string& task)
      : primitive_(primitive), args_(std::move(args)), team_(team), task_(task) {}

  void run(RunState& state) override {
    const TeamScope team(team_);
    execute(state, primitive_, args_);
  }

 protected:
  void execute(RunState& state, const_dnnl_primitive_t primitive, const Arguments& args) const {
    const dnnl_status_t status =
        dnnl_primitive_execute(primitive, state.stream, static_cast<int>(args.size()), args.data());
    if (status != dnnl_success) {
      throw TaskError(task_, "oneDNN failed with status " + std::to_string(status));
    }
  }

  dnnl_primitive_t primitive_;
  Arguments args_;
  int team_;
  const std::string& task_;
};

std::atomic<std::int64_t> repairs = 0;

// Copies the elements of `values` that are NaN. `kInfinity` is an infinity without its sign.
template <class Bits, Bits kInfinity>
void copy_nan(const void* values, void* target, std::size_t bytes) {
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  const auto* from = static_cast<const Bits*>(values);
  auto* to = static_cast<Bits*>(target);
  for (std::size_t i = 0; i < bytes / sizeof(Bits); ++i) {
    if ((from[i] & kMagnitude) > kInfinity) to[i] = from[i];
  }
}

void copy_nan(const Desc& desc, const void* values, void* target) {
  switch (desc.get_data_type()) {
    case DataType::f32:
      return copy_nan<std::uint32_t, 0x7f800000>(values, target, desc.get_size());
    case DataType::bf16:
      return copy_nan<std::uint16_t, 0x7f80>(values, target, desc.get_size());
    case DataType::f16:
      return copy_nan<std::uint16_t, 0x7c00>(values, target, desc.get_size());
    default:
      return;  // integers
  }
}

// Marks of a format: NaN is marked two, -inf a half, and numbers between them one, so that the largest mark
// of a window says what its maximum is. `kInfinity` is an infinity without its sign, `kStep` the distance
// from a power of two to the next.
template <class Bits, Bits kInfinity, Bits kOne, Bits kStep>
struct Marks {
  static constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  static constexpr Bits kSign = static_cast<Bits>(~kMagnitude);
  static constexpr Bits kLeast = kSign | kInfinity, kLowest = kLeast - 1, kNan = kInfinity | (kStep >> 1);
  static constexpr Bits kOfLeast = kOne - kStep, kOfNan = kOne + kStep;

  static bool is_nan(Bits bits) { return (bits & kMagnitude) > kInfinity; }

  static void set(const void* values, void* marks, std::size_t bytes) {
    const auto* from = static_cast<const Bits*>(values);
    auto* to = static_cast<Bits*>(marks);
    for (std::size_t i = 0; i < bytes / sizeof(Bits); ++i) {
      to[i] = is_nan(from[i]) ? kOfNan : from[i] == kLeast ? kOfLeast : kOne;
    }
  }
  static bool any_nan(const void* values, std::size_t bytes) {
    const auto* from = static_cast<const Bits*>(values);
    return std::any_of(from, from + bytes / sizeof(Bits), is_nan);
  }
  // Without an early end, so that the loop is vectorised.
  static bool any_lowest(const void* values, std::size_t bytes) {
    const auto* from = static_cast<const Bits*>(values);
    Bits found = 0;
    for (std::size_t i = 0; i < bytes / sizeof(Bits); ++i) found |= static_cast<Bits>(from[i] == kLowest);
    return found != 0;
  }
  static void apply(const void* marks, void* target, std::size_t bytes) {
    const auto* from = static_cast<const Bits*>(marks);
    auto* to = static_cast<Bits*>(target);
    for (std::size_t i = 0; i < bytes / sizeof(Bits); ++i) {
      if (from[i] == kOfNan) to[i] = kNan;
      if (from[i] == kOfLeast) to[i] = kLeast;
    }
  }
};

template <class Function>
void with_marks(const Desc& desc, const Function& function) {
  switch (desc.get_data_type()) {
    case DataType::f32:
      return function(Marks<std::uint32_t, 0x7f800000, 0x3f800000, 0x00800000>());
    case DataType::bf16:
      return function(Marks<std::uint16_t, 0x7f80, 0x3f80, 0x0080>());
    case DataType::f16:
      return function(Marks<std::uint16_t, 0x7c00, 0x3c00, 0x0400>());
    default:
      return;  // integers
  }
}

class RepairedPrimitive : public BoundPrimitive {
 public:
  RepairedPrimitive(dnnl_primitive_t primitive, Arguments args, int team, const std::string& task,
                    const NanRepair& repair)
      : BoundPrimitive(primitive, std::move(args), team, task), repair_(repair) {}

  void run(RunState& state) override {
    state.suspect = state.suspect || invalid_raised();
    clear_invalid();
    const bool keep = repair_.accumulates && (state.suspect || !repair_.reported);
    const std::vector<char> addend = keep ? held() : std::vector<char>();
    BoundPrimitive::run(state);
    const bool meets_nan = repair_.raises ? invalid_raised() : reads_nan();
    if (!meets_nan && !(repair_.pools_marks && gives_lowest())) return;
    state.suspect = true;
    restore(state, addend);
  }

 private:
  std::vector<char> held() const {
    const dnnl_exec_arg_t& given = target();
    const auto* bytes = static_cast<const char*>(data_of(given.memory));
    return {bytes, bytes + desc_of(given.memory).get_size()};
  }

  void restore(RunState& state, const std::vector<char>& addend) const {
    repairs.fetch_add(1, std::memory_order_relaxed);
    const TeamScope team(team_);
    if (repair_.pools_marks) return restore_windows(state);
    for (const AttributePrefix& prefix : repair_.before_bounds) {
      try {
        restore(state, prefix, addend);
      } catch (const dnnl::error& error) {
        throw TaskError(
            task_,
            std::string("NaN is lost in its epilogue, and oneDNN cannot run it without: ") + error.what());
      }
    }
  }

  void restore(RunState& state, const AttributePrefix& prefix, const std::vector<char>& addend) const {
    const auto [primitive, scratchpad] = repair_.make(prefix.attr);
    const dnnl::memory scratch(scratchpad, onednn_engine());
    dnnl::memory values;
    Arguments args;
    for (const dnnl_exec_arg_t& given : args_) {
      if (given.arg >= DNNL_ARG_ATTR_MULTIPLE_POST_OP(prefix.length) || given.arg == DNNL_ARG_SCRATCHPAD) {
        continue;
      }
      args.push_back(given);
      if (given.arg == DNNL_ARG_DST) {
        values = dnnl::memory(desc_of(given.memory), onednn_engine());
        // The gaps between the rows of a view belong to other buffers and are not NaN here.
        std::memset(values.get_data_handle(), 0, values.get_desc().get_size());
        std::copy(addend.begin(), addend.end(), static_cast<char*>(values.get_data_handle()));
        args.back().memory = values.get();
      }
    }
    args.push_back({DNNL_ARG_SCRATCHPAD, scratch.get()});
    execute(state, primitive.get(), args);
    copy_nan(values.get_desc(), values.get_data_handle(), data_of(target().memory));
  }

  bool reads_nan() const {
    return any(argument(DNNL_ARG_SRC), [](auto format, const void* values, std::size_t bytes) {
      return format.any_nan(values, bytes);
    });
  }

  bool gives_lowest() const {
    return any(target(), [](auto format, const void* values, std::size_t bytes) {
      return format.any_lowest(values, bytes);
    });
  }

  template <class Test>
  static bool any(const dnnl_exec_arg_t& argument, const Test& test) {
    const Desc desc = desc_of(argument.memory);
    bool found = false;
    with_marks(desc, [&](auto format) { found = test(format, data_of(argument.memory), desc.get_size()); });
    return found;
  }

  void restore_windows(RunState& state) const {
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const auto [primitive, scratchpad] = repair_.make(attr);
    const dnnl_exec_arg_t &source = argument(DNNL_ARG_SRC), &result = target();
    const dnnl::memory scratch(scratchpad, onednn_engine());
    const dnnl::memory marks(desc_of(source.memory), onednn_engine());
    const dnnl::memory found(desc_of(result.memory), onednn_engine());
    // The gaps between the rows of a view belong to other buffers and have no marks.
    std::memset(found.get_data_handle(), 0, found.get_desc().get_size());
    with_marks(marks.get_desc(), [&](auto format) {
      format.set(data_of(source.memory), marks.get_data_handle(), marks.get_desc().get_size());
    });
    execute(state, primitive.get(),
            {{DNNL_ARG_SRC, marks.get()}, {DNNL_ARG_DST, found.get()}, {DNNL_ARG_SCRATCHPAD, scratch.get()}});
    with_marks(found.get_desc(), [&](auto format) {
      format.apply(found.get_data_handle(), data_of(result.memory), found.get_desc().get_size());
    });
  }

  static Desc desc_of(const_dnnl_memory_t memory) {
    const_dnnl_memory_desc_t desc = nullptr;
    dnnl::error::wrap_c_api(dnnl_memory_get_memory_desc(memory, &desc), "could not get a memory descriptor");
    dnnl_memory_desc_t copy = nullptr;
    dnnl::error::wrap_c_api(dnnl_memory_desc_clone(&copy, desc), "could not copy a memory descriptor");
    return Desc(copy);
  }

  const dnnl_exec_arg_t& target() const { return argument(DNNL_ARG_DST); }

  const dnnl_exec_arg_t& argument(int arg) const {
    const auto is_wanted = [arg](const dnnl_exec_arg_t& given) { return given.arg == arg; };
    return *std::find_if(args_.begin(), args_.end(), is_wanted);
  }

  static void* data_of(const_dnnl_memory_t memory) {
    void* handle = nullptr;
    dnnl::error::wrap_c_api(dnnl_memory_get_data_handle(memory, &handle), "could not get an address");
    return handle;
  }

  const NanRepair& repair_;
};

class PrimitiveStep : public Step {
 public:
  PrimitiveStep(dnnl::primitive primitive, std::vector<Operand> args, std::string task, NanRepair repair = {})
      : primitive_(std::move(primitive)),
        args_(std::move(args)),
        repair_(std::move(repair)),
        team_(omp_get_max_threads()),
        task_(std::move(task)) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    Arguments bound;
    bound.reserve(args_.size());
    for (const Operand& arg : args_) bound.push_back({arg.arg, binder.memory(arg.desc, arg.where)});
    if (repair_.pools_marks || !repair_.before_bounds.empty()) {
      return std::make_unique<RepairedPrimitive>(primitive_.get(), std::move(bound), team_, task_, repair_);
    }
    return std::make_unique<BoundPrimitive>(primitive_.get(), std::move(bound), team_, task_);
  }

 private:
  dnnl::primitive primitive_;
  std::vector<Operand> args_;
  NanRepair repair_;
  int team_;
  std::string task_;
};

}  // namespace

std::int64_t nan_repairs() { return repairs.load(std::memory_order_relaxed); }

dnnl::memory::data_type onednn_type(const Lowering& low, DType type) {
  switch (type) {
    case DType::Float32:
      return DataType::f32;
    case DType::Float16:
      return DataType::f16;
    case DType::BFloat16:
      return DataType::bf16;
    case DType::Int8:
      return DataType::s8;
    case DType::UInt8:
    case DType::Bool:
      return DataType::u8;
    case DType::Int32:
      return DataType::s32;
    default:
      low.reject("oneDNN has no element type " + std::string(dtype_name(type)));
  }
}

Desc describe(const Lowering& low, DType type, const Dims& dims, const Dims& strides) {
  if (dims.empty()) return Desc({1}, onednn_type(low, type), Dims{1});
  // Kernels use 32-bit sizes: a dimension of 2^32 becomes 0, by which they divide.
  const auto large = [](std::int64_t n) { return n > std::numeric_limits<std::int32_t>::max(); };
  if (std::any_of(dims.begin(), dims.end(), large)) low.reject("a dimension has more than 2^31 - 1 entries");
  return Desc(dims, onednn_type(low, type), strides);
}

Desc describe(const Lowering& low, const View& view) {
  return describe(low, view.dtype, view.dims, view.strides);
}

Desc channels_last(const Desc& desc) {
  const Dims dims = desc.get_dims();
  Dims strides(dims.size());
  std::int64_t step = dims[1];
  strides[1] = 1;
  for (std::size_t i = dims.size(); i-- > 2;) {
    strides[i] = step;
    step *= dims[i];
  }
  strides[0] = step;
  return Desc(dims, desc.get_data_type(), strides);
}

std::string layout_name(const Desc& desc) {
  if (desc.get_format_kind() == dnnl::memory::format_kind::opaque) return "packed";
  if (desc.get_format_kind() != dnnl::memory::format_kind::blocked) return "any";
  const Dims strides = desc.get_strides();
  const Dims blocks = desc.get_inner_blks();
  const Dims indices = desc.get_inner_idxs();
  std::vector<std::size_t> order(strides.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return strides[a] > strides[b]; });
  std::string name;
  for (const std::size_t i : order) {
    const bool blocked =
        std::find(indices.begin(), indices.end(), static_cast<std::int64_t>(i)) != indices.end();
    name += static_cast<char>((blocked ? 'A' : 'a') + static_cast<char>(i));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    name += std::to_string(blocks[i]) + static_cast<char>('a' + static_cast<char>(indices[i]));
  }
  return name;
}

int team_of(const Lowering& low) { return low.attrs().flag("serial") ? 1 : omp_get_max_threads(); }

dnnl::primitive_attr base_attr() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

void emit_reorder(Lowering& low, const Desc& from, const Location& source, const Desc& to,
                  const Location& target, bool before_loop) {
  const dnnl::reorder::primitive_desc desc(onednn_engine(), from, onednn_engine(), to, base_attr());
  std::vector<Operand> args = {{DNNL_ARG_FROM, from, source}, {DNNL_ARG_TO, to, target}};
  if (desc.scratchpad_desc().get_size()) {
    args.push_back(
        {DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc(), low.scratch(desc.scratchpad_desc().get_size())});
  }
  auto step = std::make_unique<PrimitiveStep>(dnnl::reorder(desc), std::move(args), low.task().name);
  before_loop ? low.emit_before_loop(std::move(step)) : low.emit(std::move(step));
}

void PrimitiveBuilder::read(int arg, const View& view, const Desc& have, const Desc& want) {
  if (have != want && low_.is_constant(view)) {
    args_.push_back({arg, want, low_.packed(view, have, want)});
  } else if (have != want && low_.is_steady(view)) {
    const Location place = low_.held(want.get_size());
    before_loop_.push_back({have, low_.at(view), want, place});
    args_.push_back({arg, want, place});
  } else {
    read(arg, low_.at(view), have, want);
  }
}

void PrimitiveBuilder::read(int arg, const Location& where, const Desc& have, const Desc& want) {
  if (have == want) {
    args_.push_back({arg, want, where});
    return;
  }
  const Location place = low_.scratch(want.get_size());
  before_.push_back({have, where, want, place});
  args_.push_back({arg, want, place});
}

void PrimitiveBuilder::write(int arg, const View& view, const Desc& have, const Desc& made) {
  if (have == made) {
    args_.push_back({arg, made, low_.at(view)});
    return;
  }
  const Location place = low_.scratch(made.get_size());
  after_.push_back({made, place, have, low_.at(view)});
  args_.push_back({arg, made, place});
}

void PrimitiveBuilder::emit(dnnl::primitive primitive, const Desc& scratchpad, NanRepair repair) {
  if (scratchpad.get_size())
    args_.push_back({DNNL_ARG_SCRATCHPAD, scratchpad, low_.scratch(scratchpad.get_size())});
  for (const Move& move : before_loop_)
    emit_reorder(low_, move.from, move.source, move.to, move.target, true);
  for (const Move& move : before_) emit_reorder(low_, move.from, move.source, move.to, move.target);
  low_.emit(std::make_unique<PrimitiveStep>(std::move(primitive), std::move(args_), low_.task().name,
                                            std::move(repair)));
  for (const Move& move : after_) emit_reorder(low_, move.from, move.source, move.to, move.target);
}

}  // namespace npu
