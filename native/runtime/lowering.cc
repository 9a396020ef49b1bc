// The table of task kinds and the part of lowering that all kinds share.
#include "runtime/lowering.h"

#include "core/errors.h"
#include "core/processor.h"

namespace npu {
namespace {

struct TaskKind {
  std::string_view name;
  LowerFn lower;
  bool widens = false;      // 16-bit floats may be computed as float32
  bool multiplies = false;  // 8-bit integers are, where their products are not summed exactly
};

// clang-format off
constexpr TaskKind kKinds[] = {
#if NPU_ONEDNN
    {"matmul", lower_matmul, true, true},
    {"conv", lower_conv, true, true},
    {"conv_grad_weights", lower_conv_grad_weights, true},
    {"deconv", lower_deconv, true},
    {"pool", lower_pool, true},
    {"pool_grad", lower_pool_grad, true},
    {"lrn", lower_lrn, true},
    {"rnn", lower_rnn, true},
    {"attention", lower_attention},
    {"attention_grad", lower_attention_grad},
    {"layer_norm_grad", lower_layer_norm_grad},
    {"packed_matmul", lower_packed_matmul},
    {"lstm_steps", lower_lstm_steps},
    {"lstm_steps_grad", lower_lstm_steps_grad},
#endif
    {"reorder", lower_reorder},
    {"kernel", lower_kernel},
    {"aicpu", lower_aicpu},
    {"check", lower_check},
    {"copy", lower_copy},
    {"if", lower_if},
    {"while", lower_while},
    {"scan_load", lower_scan_load},
    {"scan_store", lower_scan_store},
};
// clang-format on

constexpr std::size_t kScratchAlignment = 64;
constexpr std::string_view kImplementation = "implementation";

const TaskKind* find_kind(std::string_view name) {
  for (const TaskKind& kind : kKinds) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

#if NPU_ONEDNN
// False, with the reason, if the task is rejected; nothing has been emitted then.
bool try_lower(Lowering& low, LowerFn lower, std::string& refusal) {
  try {
    try {
      lower(low);
      return true;
    } catch (const dnnl::error& error) {
      low.reject(std::string("oneDNN refuses it: ") + error.what());
    }
  } catch (const Unsupported& error) {
    refusal = error.what();
  }
  return false;
}

// Lowers a library task, in wider types if the library lacks the operands' own.
void lower_by_library(const TaskKind& kind, Lowering& low, LoweringHost& host, TaskInfo& info) {
  if (kind.multiplies && !sums_bytes_exactly() && lower_wide_integers(low, kind.lower, host, info)) return;
  if (!kind.widens) return kind.lower(low);
  if (std::string refusal; !try_lower(low, kind.lower, refusal)) {
    if (!lower_widened(low, kind.lower, host, info)) throw Unsupported(refusal);
  }
}
#endif

const View& pick(const std::vector<View>& views, std::size_t i, const Lowering& low, const char* side) {
  if (i < views.size()) return views[i];
  low.reject(std::string(side) + " " + std::to_string(i) + " is missing");
}

}  // namespace

bool is_task_kind(std::string_view kind) { return find_kind(kind) != nullptr; }

void lower_task(const TaskDef& task, LoweringHost& host, TaskInfo& info, std::size_t& scratch_bytes) {
  const TaskKind* kind = find_kind(task.kind);
  if (!kind) throw InvalidArgument("unknown task kind '" + task.kind + "'");
  Lowering low(task, host, info);
  try {
#if NPU_ONEDNN
    const bool library = is_library(task);
    if (library) {
      lower_by_library(*kind, low, host, info);
    } else {
      kind->lower(low);
    }
    if (task.attrs.flag("raises_on_nan") && !(library && kind->multiplies)) emit_nan_search(low);
  } catch (const dnnl::error& error) {
    low.reject(std::string("oneDNN refuses it: ") + error.what());
#else
    kind->lower(low);
    if (task.attrs.flag("raises_on_nan")) emit_nan_search(low);
#endif
  } catch (const InvalidArgument& error) {
    throw InvalidArgument("task '" + task.name + "' (" + task.kind + "): " + error.what());
  }
  scratch_bytes = low.scratch_bytes();
}

bool is_library(const TaskDef& task) {
  constexpr std::string_view kLibrary = "onednn";
  return task.attrs.text(kImplementation, std::string(kLibrary)).starts_with(kLibrary);
}

void lower_named(Lowering& low, const Implementation* first, std::size_t count) {
  const Implementation* const last = first + count - 1;
  const std::string name = low.attrs().text(kImplementation, std::string(last->name));
  std::string known;
  for (const Implementation* entry = first; entry <= last; ++entry) {
    if (entry->name == name) return entry->lower(low);
    known += (known.empty() ? "" : ", ") + std::string(entry->name);
  }
  low.reject("there is no implementation '" + name + "'; there are " + known);
}

const View& Lowering::input(std::size_t i) const { return pick(task_.inputs, i, *this, "input"); }
const View& Lowering::output(std::size_t i) const { return pick(task_.outputs, i, *this, "output"); }

Location Lowering::scratch(std::size_t bytes) {
  const Location place = host_.scratch(scratch_bytes_);
  scratch_bytes_ += (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  return place;
}

int Lowering::block_attr(std::string_view name) const {
  const std::int64_t block = attrs().integer(name);
  if (block <= 0 || block >= host_.block_count()) {
    reject("attribute '" + std::string(name) + "' names block " + std::to_string(block) +
           ", which does not exist");
  }
  if (block <= task_.block) reject("a block may only run blocks created after it");
  return static_cast<int>(block);
}

void Lowering::describe(std::string impl, std::string layout, double flops) {
  info_.impl = std::move(impl);
  info_.layout = std::move(layout);
  info_.flops = flops;
}

void Lowering::reject(const std::string& why) const {
  std::string text = "task '" + task_.name + "' (" + task_.kind + "): " + why + "; inputs";
  for (const View& view : task_.inputs) text += " " + to_string(view);
  text += ", outputs";
  for (const View& view : task_.outputs) text += " " + to_string(view);
  throw Unsupported(text);
}

}  // namespace npu
