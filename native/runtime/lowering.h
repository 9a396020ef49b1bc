// Lowering: turns one task into steps. Each task kind is one function over this interface.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/view.h"
#include "runtime/step.h"
#include "runtime/task.h"

namespace npu {

// The interface of the program under construction that lowering uses.
class LoweringHost {
 public:
  virtual ~LoweringHost() = default;
  virtual bool is_constant(int buffer) const = 0;
  virtual Location locate(const View& view) = 0;
  virtual Location scratch(std::size_t offset) = 0;
#if NPU_ONEDNN
  // A constant's contents converted once to another layout; equal requests share the result.
  virtual Location packed(const View& view, const dnnl::memory::desc& from, const dnnl::memory::desc& to) = 0;
#endif
  // A constant's contents transformed once into `bytes` of packed data.
  using Prepare = std::function<void(const char* from, char* to)>;
  virtual Location prepared(const View& view, std::size_t bytes, Prepare prepare) = 0;
  virtual Location literal(const void* data, std::size_t bytes) = 0;
  virtual int output_of(const View& view) const = 0;  // the program output a view fills, or -1
  virtual int block_count() const = 0;
  // The program outputs that a block fills step by step (scan_store), with their full dims.
  virtual std::vector<std::pair<int, Dims>> stored_outputs(int block) const = 0;
  virtual void emit(std::unique_ptr<Step> step) = 0;
  // True if the task is in a loop body and the view is loop-invariant.
  virtual bool is_steady(const View&) const { return false; }
  // Memory that lives as long as the loop around the task, and a step that fills it once before the loop.
  virtual Location held(std::size_t) { return {}; }
  virtual void emit_before_loop(std::unique_ptr<Step>) {}
};

class Lowering {
 public:
  Lowering(const TaskDef& task, LoweringHost& host, TaskInfo& info) : task_(task), host_(host), info_(info) {}

  const TaskDef& task() const { return task_; }
  const Attrs& attrs() const { return task_.attrs; }
  // These raise Unsupported, naming the task, if the view is missing.
  const View& input(std::size_t i) const;
  const View& output(std::size_t i) const;
  std::size_t input_count() const { return task_.inputs.size(); }
  std::size_t output_count() const { return task_.outputs.size(); }

  bool is_constant(const View& view) const { return host_.is_constant(view.buffer); }
  Location at(const View& view) { return host_.locate(view); }
  // Scratch memory for the duration of this task, shared with other tasks' scratch.
  Location scratch(std::size_t bytes);
#if NPU_ONEDNN
  Location packed(const View& view, const dnnl::memory::desc& from, const dnnl::memory::desc& to) {
    return host_.packed(view, from, to);
  }
#endif
  Location prepared(const View& view, std::size_t bytes, LoweringHost::Prepare prepare) {
    return host_.prepared(view, bytes, std::move(prepare));
  }
  template <class T>
  Location literal(const T& value) {
    return host_.literal(&value, sizeof(T));
  }
  int output_of(const View& view) const { return host_.output_of(view); }
  int block_attr(std::string_view name) const;
  std::vector<std::pair<int, Dims>> stored_outputs(int block) const { return host_.stored_outputs(block); }
  void emit(std::unique_ptr<Step> step) { host_.emit(std::move(step)); }
  bool is_steady(const View& view) const { return host_.is_steady(view); }
  Location held(std::size_t bytes) { return host_.held(bytes); }
  void emit_before_loop(std::unique_ptr<Step> step) { host_.emit_before_loop(std::move(step)); }
  std::size_t scratch_bytes() const { return scratch_bytes_; }

  void describe(std::string impl, std::string layout, double flops);
  // Raises Unsupported with the task's name, kind, operands and the reason.
  [[noreturn]] void reject(const std::string& why) const;

 private:
  const TaskDef& task_;
  LoweringHost& host_;
  TaskInfo& info_;
  std::size_t scratch_bytes_ = 0;
};

using LowerFn = void (*)(Lowering&);

// One way to run a kind of task.
struct Implementation {
  std::string_view name;
  LowerFn lower;
};

// Lowers a task with the implementation that its attribute of this name names; the last of the list if it
// names none. The choice is the compiler's: a task that the implementation cannot run is rejected.
void lower_named(Lowering& low, const Implementation* first, std::size_t count);
template <std::size_t N>
void lower_named(Lowering& low, const Implementation (&list)[N]) {
  lower_named(low, list, N);
}

// True if oneDNN supports a task: in the types and layouts of its operands, or in others with conversions
// around it.
bool is_library(const TaskDef& task);

// Emits a search for NaN and infinities in the first output of a task; a run in which it finds any is
// suspect.
void emit_nan_search(Lowering& low);

bool is_task_kind(std::string_view kind);

// Lowers a task by its kind. Raises Unsupported or InvalidArgument, both naming the task.
void lower_task(const TaskDef& task, LoweringHost& host, TaskInfo& info, std::size_t& scratch_bytes);

// Lowers a task on 16-bit floats by emulation in float32; false if it has none.
bool lower_widened(Lowering& low, LowerFn lower, LoweringHost& host, TaskInfo& info);

// Lowers a product of 8-bit integers by emulation in float32, exact up to sums of 2^24; false if it is not
// such a product, or if it accumulates into its output.
bool lower_wide_integers(Lowering& low, LowerFn lower, LoweringHost& host, TaskInfo& info);

// One function per task kind; the table that names them is in lowering.cc.
void lower_matmul(Lowering& low);
void lower_conv(Lowering& low);
void lower_deconv(Lowering& low);
void lower_pool(Lowering& low);
void lower_lrn(Lowering& low);
void lower_rnn(Lowering& low);
void lower_attention(Lowering& low);
void lower_attention_grad(Lowering& low);
void lower_layer_norm_grad(Lowering& low);
void lower_packed_matmul(Lowering& low);
void lower_lstm_steps(Lowering& low);
void lower_lstm_steps_grad(Lowering& low);
void lower_conv_grad_weights(Lowering& low);
void lower_pool_grad(Lowering& low);
void lower_reorder(Lowering& low);
void lower_kernel(Lowering& low);
void lower_aicpu(Lowering& low);
void lower_check(Lowering& low);
void lower_copy(Lowering& low);
void lower_if(Lowering& low);
void lower_while(Lowering& low);
void lower_scan_load(Lowering& low);
void lower_scan_store(Lowering& low);

}  // namespace npu
