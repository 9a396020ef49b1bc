// Tasks on 16-bit floats that no implementation takes: computed on float32 copies, constants converted once.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/errors.h"
#include "core/strided.h"
#include "onednn/engine.h"
#include "runtime/lowering.h"
#include "runtime/strided_step.h"

namespace npu {
namespace {

bool is_half(const View& view) { return view.dtype == DType::Float16 || view.dtype == DType::BFloat16; }

// A dense float32 view whose axes lie in memory in the order of the original's.
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

// Stands between a task on float32 stand-ins and the program. Its own buffers have numbers from kFirst up.
class WideningHost : public LoweringHost {
 public:
  explicit WideningHost(LoweringHost& host, Lowering& outer) : host_(host), outer_(outer) {}

  // The stand-in of a view: itself unless it holds 16-bit floats.
  View substitute(const View& view) {
    if (!is_half(view)) return view;
    View wide = wide_view(view, kFirst + static_cast<int>(standins_.size()));
    const bool fixed = host_.is_constant(view.buffer);
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
  // Steps are held back until the task is known to be possible.
  void flush() {
    for (auto& step : steps_) host_.emit(std::move(step));
  }

  static bool is_standin(const View& view) { return view.buffer >= kFirst; }

  bool building() const override { return host_.building(); }
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

}  // namespace

bool lower_widened(Lowering& low, LowerFn lower, LoweringHost& host, TaskInfo& info) {
  TaskDef task = low.task();
  const auto any_half = [](const std::vector<View>& views) {
    return std::any_of(views.begin(), views.end(), is_half);
  };
  if (!any_half(task.inputs) && !any_half(task.outputs)) return false;
  WideningHost widening(host, low);
  for (View& view : task.inputs) view = widening.substitute(view);
  for (View& view : task.outputs) view = widening.substitute(view);
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
