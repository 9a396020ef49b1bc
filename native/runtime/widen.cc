// Tasks on types that this processor has no products of: computed on float32 copies, constants converted
// once.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>

#include "core/errors.h"
#include "core/parallel.h"
#include "core/strided.h"
#include "onednn/engine.h"
#include "runtime/lowering.h"
#include "runtime/strided_step.h"

namespace npu {
namespace {

constexpr double kCycles = 4;  // of a number

bool is_half(const View& view) { return view.dtype == DType::Float16 || view.dtype == DType::BFloat16; }

// A dense float32 view with the axis order of the original in memory.
View wide_view(const View& view, int buffer) {
  std::vector<std::size_t> order(view.dims.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return view.strides[a] > view.strides[b]; });
  View wide{buffer, DType::Float32, view.dims, Dims(view.dims.size()), 0};
  std::int64_t step = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    wide.strides[order[i]] = step;
    step *= std::max<std::int64_t>(view.dims[order[i]], 1);
  }
  return wide;
}

// Adapter between a task on float32 copies and the program. Its own buffers have numbers from kFirst up.
class WideningHost : public LoweringHost {
 public:
  explicit WideningHost(LoweringHost& host, Lowering& outer) : host_(host), outer_(outer) {}

  // The float32 copy of a view; constants are converted once, unless they are modified later.
  View substitute(const View& view, bool once = true) {
    View wide = wide_view(view, kFirst + static_cast<int>(standins_.size()));
    const bool fixed = once && host_.is_constant(view.buffer);
    standins_.push_back({view, wide, fixed, fixed ? Location{} : outer_.scratch(wide.bytes())});
    return wide;
  }

  void convert_to(const View& wide) {
    const Standin& s = standin(wide.buffer);
    if (!s.constant) emit(make_strided_copy(s.original, s.wide, host_.locate(s.original), s.place));
  }
  void convert_from(const View& wide) {
    const Standin& s = standin(wide.buffer);
    emit(make_strided_copy(s.wide, s.original, s.place, host_.locate(s.original)));
  }
  Location place(const View& wide) const { return standin(wide.buffer).place; }
  // Buffers steps until the task is known to be supported.
  void flush() {
    for (auto& step : steps_) host_.emit(std::move(step));
  }

  static bool is_standin(const View& view) { return view.buffer >= kFirst; }

  bool is_constant(int buffer) const override {
    return buffer >= kFirst ? standin(buffer).constant : host_.is_constant(buffer);
  }
  Location locate(const View& view) override {
    if (!is_standin(view)) return host_.locate(view);
    const Standin& s = standin(view.buffer);
    if (s.constant) return prepare(s, s.wide.bytes(), nullptr);
    Location place = s.place;
    place.offset += static_cast<std::size_t>(view.byte_offset());
    return place;
  }
  Location scratch(std::size_t offset) override { return host_.scratch(outer_.scratch_bytes() + offset); }
  Location packed(const View& view, const dnnl::memory::desc& from, const dnnl::memory::desc& to) override {
    if (!is_standin(view)) return host_.packed(view, from, to);
    return prepare(standin(view.buffer), to.get_size(), [from, to](const char* source, char* target) {
      dnnl::stream stream(onednn_engine());
      dnnl::memory a(from, onednn_engine(), const_cast<char*>(source)), b(to, onednn_engine(), target);
      dnnl::reorder(a, b).execute(stream, a, b);
      stream.wait();
    });
  }
  Location prepared(const View& view, std::size_t bytes, Prepare prepare_fn) override {
    if (!is_standin(view)) return host_.prepared(view, bytes, std::move(prepare_fn));
    return prepare(standin(view.buffer), bytes, std::move(prepare_fn));
  }
  Location literal(const void* data, std::size_t bytes) override { return host_.literal(data, bytes); }
  int output_of(const View& view) const override { return is_standin(view) ? -1 : host_.output_of(view); }
  int block_count() const override { return host_.block_count(); }
  std::vector<std::pair<int, Dims>> stored_outputs(int block) const override {
    return host_.stored_outputs(block);
  }
  void emit(std::unique_ptr<Step> step) override { steps_.push_back(std::move(step)); }

 private:
  static constexpr int kFirst = 1 << 30;

  struct Standin {
    View original, wide;
    bool constant;
    Location place;
  };

  const Standin& standin(int buffer) const { return standins_[static_cast<std::size_t>(buffer - kFirst)]; }

  // A constant as float32, then passed through `next` if there is one.
  Location prepare(const Standin& s, std::size_t bytes, Prepare next) {
    const StridedCopy convert(s.original, s.wide);
    const std::size_t wide_bytes = s.wide.bytes();
    return host_.prepared(s.original, bytes, [=](const char* from, char* to) {
      if (!next) return convert.run(from, to);
      std::vector<float> values(wide_bytes / sizeof(float));
      convert.run(from, reinterpret_cast<char*>(values.data()));
      next(reinterpret_cast<const char*>(values.data()), to);
    });
  }

  LoweringHost& host_;
  Lowering& outer_;
  std::vector<Standin> standins_;
  std::vector<std::unique_ptr<Step>> steps_;
};

bool accumulates(const TaskDef& task) {
  const auto ops = task.attrs.texts("post_ops");
  return std::any_of(ops.begin(), ops.end(), [](const std::string& op) { return op.rfind("sum", 0) == 0; });
}

bool is_byte(const View& view) { return view.dtype == DType::Int8 || view.dtype == DType::UInt8; }

// Subtracts a number from every element of a dense float32 block.
class ShiftStep : public Step {
 public:
  ShiftStep(const Location& block, std::int64_t count, float by) : block_(block), count_(count), by_(by) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<Bound>(count_, by_);
    binder.address(&bound->block, block_);
    return bound;
  }

 private:
  struct Bound : BoundStep {
    Bound(std::int64_t count, float by) : count(count), by(by) {}
    void run(RunState&) override {
      float* const values = static_cast<float*>(block);
      parallel_for(count, grain(kCycles), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) values[i] -= by;
      });
    }
    void* block = nullptr;
    std::int64_t count;
    float by;
  };

  Location block_;
  std::int64_t count_;
  float by_;
};

std::string post_op(const char* name, double first, double second) {
  std::string text = name;
  for (const double value : {first, second}) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof(digits), static_cast<float>(value)).ptr;
    text += "," + std::string(digits, end);
  }
  return text;
}

// A per-channel vector as an operand of a post-op.
View along_channels(const View& vector, const TaskDef& task) {
  View view{vector.buffer, vector.dtype, {vector.elements()}, {1}, vector.offset};
  const std::size_t inner = task.kind == "conv" ? task.outputs[0].dims.size() - 2 : 0;
  view.dims.resize(1 + inner, 1);
  view.strides.resize(1 + inner, 1);
  return view;
}

constexpr std::string_view kQuantisation[] = {"src_scale",      "dst_scale",     "src_zero_point",
                                              "dst_zero_point", "has_bias",      "has_weight_scales",
                                              "post_ops",       "implementation"};

// The same product of real numbers: its scales, bias and rounding are post-ops.
TaskDef real_product(const TaskDef& given) {
  TaskDef task{given.kind, given.name, {given.inputs[0], given.inputs[1]}, given.outputs, {}, given.block};
  for (const auto& [name, value] : given.attrs) {
    if (std::find(std::begin(kQuantisation), std::end(kQuantisation), name) == std::end(kQuantisation)) {
      task.attrs.set(name, value);
    }
  }
  const Attrs& attrs = given.attrs;
  std::vector<std::string> ops{post_op("linear", attrs.real("src_scale", 1), 0)};
  const std::size_t bias = 2, scales = bias + (attrs.flag("has_bias") ? 1 : 0),
                    rest = scales + (attrs.flag("has_weight_scales") ? 1 : 0);
  if (rest > scales) {
    task.inputs.push_back(along_channels(given.inputs.at(scales), given));
    ops.push_back("mul");
  }
  if (scales > bias) {
    task.inputs.push_back(along_channels(given.inputs.at(bias), given));
    ops.push_back("add");
  }
  const auto last = given.attrs.texts("post_ops");
  ops.insert(ops.end(), last.begin(), last.end());
  task.inputs.insert(task.inputs.end(), given.inputs.begin() + static_cast<std::ptrdiff_t>(rest),
                     given.inputs.end());
  ops.push_back(post_op("linear", 1 / attrs.real("dst_scale", 1), 0));
  const DType type = given.outputs[0].dtype;
  if (type != DType::Float32) ops.push_back("round");
  ops.push_back(post_op("linear", 1, static_cast<double>(attrs.integer("dst_zero_point", 0))));
  if (type == DType::Int8) ops.push_back(post_op("clip", -128, 127));
  if (type == DType::UInt8) ops.push_back(post_op("clip", 0, 255));
  task.attrs.set("post_ops", std::move(ops));
  return task;
}

}  // namespace

bool lower_wide_integers(Lowering& low, LowerFn lower, LoweringHost& host, TaskInfo& info) {
  if (!is_byte(low.input(0)) || !is_byte(low.input(1)) || accumulates(low.task())) return false;
  TaskDef task = real_product(low.task());
  WideningHost widening(host, low);
  const auto zero = static_cast<float>(low.attrs().integer("src_zero_point", 0));
  View& x = task.inputs[0];
  View& w = task.inputs[1];
  View& y = task.outputs[0];
  x = widening.substitute(x, zero == 0);
  w = widening.substitute(w);
  if (y.dtype != DType::Float32) y = widening.substitute(y);
  widening.convert_to(x);
  widening.convert_to(w);
  if (zero != 0) widening.emit(std::make_unique<ShiftStep>(widening.place(x), x.elements(), zero));
  Lowering inner(task, widening, info);
  lower(inner);
  if (WideningHost::is_standin(y)) widening.convert_from(y);
  low.scratch(inner.scratch_bytes());
  widening.flush();
  info.impl += " as float32";
  return true;
}

bool lower_widened(Lowering& low, LowerFn lower, LoweringHost& host, TaskInfo& info) {
  TaskDef task = low.task();
  const auto any_half = [](const std::vector<View>& views) {
    return std::any_of(views.begin(), views.end(), is_half);
  };
  if (!any_half(task.inputs) && !any_half(task.outputs)) return false;
  WideningHost widening(host, low);
  for (View& view : task.inputs) view = is_half(view) ? widening.substitute(view) : view;
  for (View& view : task.outputs) view = is_half(view) ? widening.substitute(view) : view;
  for (const View& view : task.inputs) {
    if (WideningHost::is_standin(view)) widening.convert_to(view);
  }
  for (const View& view : task.outputs) {
    if (WideningHost::is_standin(view) && accumulates(task)) widening.convert_to(view);
  }
  Lowering inner(task, widening, info);
  lower(inner);
  for (const View& view : task.outputs) {
    if (WideningHost::is_standin(view)) widening.convert_from(view);
  }
  low.scratch(inner.scratch_bytes());
  widening.flush();
  info.impl += " as float32";
  return true;
}

}  // namespace npu
