// Primitive steps, descriptors and reorders.
#include "onednn/primitive.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/errors.h"
#include "onednn/engine.h"

namespace npu {
namespace {

using DataType = dnnl::memory::data_type;

class BoundPrimitive : public BoundStep {
 public:
  BoundPrimitive(dnnl_primitive_t primitive, std::vector<dnnl_exec_arg_t> args, int team,
                 const std::string& task)
      : primitive_(primitive), args_(std::move(args)), team_(team), task_(task) {}

  void run(RunState& state) override {
    const TeamScope team(team_);
    const dnnl_status_t status =
        dnnl_primitive_execute(primitive_, state.stream, static_cast<int>(args_.size()), args_.data());
    if (status != dnnl_success) {
      throw TaskError(task_, "oneDNN failed with status " + std::to_string(status));
    }
  }

 private:
  dnnl_primitive_t primitive_;
  std::vector<dnnl_exec_arg_t> args_;
  int team_;
  const std::string& task_;
};

class PrimitiveStep : public Step {
 public:
  PrimitiveStep(dnnl::primitive primitive, std::vector<Operand> args, std::string task)
      : primitive_(std::move(primitive)),
        args_(std::move(args)),
        team_(omp_get_max_threads()),
        task_(std::move(task)) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    std::vector<dnnl_exec_arg_t> bound;
    bound.reserve(args_.size());
    for (const Operand& arg : args_) bound.push_back({arg.arg, binder.memory(arg.desc, arg.where)});
    return std::make_unique<BoundPrimitive>(primitive_.get(), std::move(bound), team_, task_);
  }

 private:
  dnnl::primitive primitive_;
  std::vector<Operand> args_;
  int team_;
  std::string task_;
};

constexpr double kSerialFlops = 3e5;
constexpr double kSerialBytes = 64 << 10;

}  // namespace

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
  // Its kernels count in 32 bits: a dimension of 2^32 is none to them, by which they divide.
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

bool is_reference(const std::string& impl) { return impl.rfind("ref", 0) == 0; }

int team_for(double flops, double bytes) {
  return flops < kSerialFlops && bytes < kSerialBytes ? 1 : omp_get_max_threads();
}

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

void PrimitiveBuilder::emit(dnnl::primitive primitive, const Desc& scratchpad) {
  if (scratchpad.get_size())
    args_.push_back({DNNL_ARG_SCRATCHPAD, scratchpad, low_.scratch(scratchpad.get_size())});
  for (const Move& move : before_loop_)
    emit_reorder(low_, move.from, move.source, move.to, move.target, true);
  for (const Move& move : before_) emit_reorder(low_, move.from, move.source, move.to, move.target);
  low_.emit(std::make_unique<PrimitiveStep>(std::move(primitive), std::move(args_), low_.task().name));
  for (const Move& move : after_) emit_reorder(low_, move.from, move.source, move.to, move.target);
}

}  // namespace npu
