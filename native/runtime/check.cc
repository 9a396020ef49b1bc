// Task kind "check": fails where an integer is not allowed. Its output, if it has one, is its input.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "aicpu/dispatch.h"
#include "core/errors.h"
#include "runtime/lowering.h"

namespace npu {
namespace {

// "[1,0,2]": the index of an element.
std::string position(const Dims& dims, std::int64_t flat) {
  std::string text;
  for (std::size_t axis = dims.size(); axis-- > 0;) {
    text = std::to_string(flat % dims[axis]) + (text.empty() ? "" : ",") + text;
    flat /= dims[axis];
  }
  return "[" + text + "]";
}

void fill(std::string& text, std::string_view name, const std::string& value) {
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + value.size())) {
    text.replace(at, name.size(), value);
  }
}

// The allowed range of elements, and the error message.
struct Rule {
  std::vector<std::int64_t> sizes;  // for all elements, or for each position of the last axis; none: not zero
  std::int64_t least;
  bool from_end;  // negative indices count from the end
  std::string what, message;

  std::int64_t low(std::size_t column) const { return from_end ? -sizes[column] : least; }
  std::size_t column(std::int64_t at) const { return static_cast<std::size_t>(at) % sizes.size(); }

  bool allows(std::int64_t at, std::int64_t value) const {
    if (sizes.empty()) return value != 0;
    return value >= low(column(at)) && value < sizes[column(at)];
  }

  [[noreturn]] void broken(const std::string& task, const Dims& dims, std::int64_t at,
                           std::int64_t value) const {
    std::string text = message;
    fill(text, "{what}", what);
    fill(text, "{place}", position(dims, at));
    fill(text, "{value}", std::to_string(value));
    if (sizes.empty()) throw TaskError(task, text, "division");
    fill(text, "{least}", std::to_string(from_end ? low(column(at)) : std::max<std::int64_t>(least, 0)));
    fill(text, "{size}", std::to_string(sizes[column(at)]));
    throw TaskError(task, text, "index");
  }
};

// Equally spaced elements, repeated along outer axes.
struct Rows {
  std::int64_t count = 1, stride = 1;
  Dims dims, strides;  // of the rows, outermost first
};

// The view with rows merged as far as possible, in order.
Rows rows_of(const View& view) {
  Rows rows;
  for (std::size_t axis = view.dims.size(); axis-- > 0;) {
    const std::int64_t dim = view.dims[axis], stride = view.strides[axis];
    if (dim == 1) continue;
    if (rows.dims.empty() && (rows.count == 1 || stride == rows.stride * rows.count)) {
      if (rows.count == 1) rows.stride = stride;
      rows.count *= dim;
    } else {
      rows.dims.insert(rows.dims.begin(), dim);
      rows.strides.insert(rows.strides.begin(), stride);
    }
  }
  return rows;
}

// True if an element is out of range (or zero); branch-free so that the loop vectorises.
template <class T>
bool any_wrong(const T* values, const Rows& rows, const Rule& rule) {
  bool wrong = false;
  if (rule.sizes.empty()) {
    for (std::int64_t i = 0; i < rows.count; ++i) wrong |= values[i * rows.stride] == T{};
    return wrong;
  }
  const std::int64_t low = rule.low(0), size = rule.sizes[0];
  const auto outside = [&](T given) {
    const auto value = static_cast<std::int64_t>(given);
    return (value < low) | (value >= size);
  };
  if (rows.stride == 1) {
    for (std::int64_t i = 0; i < rows.count; ++i) wrong |= outside(values[i]);
  } else {
    for (std::int64_t i = 0; i < rows.count; ++i) wrong |= outside(values[i * rows.stride]);
  }
  return wrong;
}

struct CheckPlan {
  View view;
  Rows rows;
  Rule rule;
  std::string task;
  std::size_t bytes;  // to copy; 0: readers read the input itself

  template <class T>
  void find_wrong(const T* values) const {
    const std::int64_t count = view.elements();
    for (std::int64_t at = 0; at < count; ++at) {
      std::int64_t offset = 0, left = at;
      for (std::size_t axis = view.dims.size(); axis-- > 0; left /= view.dims[axis]) {
        offset += left % view.dims[axis] * view.strides[axis];
      }
      const auto value = static_cast<std::int64_t>(values[offset]);
      if (!rule.allows(at, value)) rule.broken(task, view.dims, at, value);
    }
  }

  template <class T>
  bool any_wrong_row(const T* values, std::size_t axis) const {
    if (axis == rows.dims.size()) return any_wrong(values, rows, rule);
    for (std::int64_t i = 0; i < rows.dims[axis]; ++i) {
      if (any_wrong_row(values + i * rows.strides[axis], axis + 1)) return true;
    }
    return false;
  }

  template <class T>
  void check(const void* data) const {
    const T* values = static_cast<const T*>(data);
    if (rule.sizes.size() > 1 || any_wrong_row(values, 0)) find_wrong(values);
  }
};

using CheckFn = void (CheckPlan::*)(const void*) const;

class BoundCheck : public BoundStep {
 public:
  BoundCheck(const CheckPlan& plan, CheckFn check) : plan_(plan), check_(check) {}

  void run(RunState&) override {
    (plan_.*check_)(source);
    if (plan_.bytes && target != source) std::memcpy(target, source, plan_.bytes);
  }

  void* source = nullptr;
  void* target = nullptr;

 private:
  const CheckPlan& plan_;
  CheckFn check_;
};

class CheckStep : public Step {
 public:
  CheckStep(CheckPlan plan, CheckFn check, Location source, Location target)
      : plan_(std::move(plan)), check_(check), source_(source), target_(target) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundCheck>(plan_, check_);
    binder.address(&bound->source, source_);
    if (plan_.bytes) binder.address(&bound->target, target_);
    return bound;
  }

 private:
  CheckPlan plan_;
  CheckFn check_;
  Location source_, target_;
};

CheckFn check_of(DType dtype) {
  CheckFn found = nullptr;
  static_cast<void>(aicpu::with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) found = &CheckPlan::check<T>;
    return aicpu::Status::ok();
  }));
  return found;
}

}  // namespace

// Attributes: limits (one for all elements, or one for each position of the last axis; none: elements must
// not be zero), least (the smallest value allowed) or from_end (it is minus the limit), what (the name of the
// tensor) and message (with {what}, {place}, {value}, {least}, {size} in it).
void lower_check(Lowering& low) {
  const View& x = low.input(0);
  const bool copies = low.output_count() > 0;
  if (copies && (!x.contiguous() || !low.output(0).contiguous()))
    low.reject("views to copy must be contiguous");
  if (copies && x.bytes() != low.output(0).bytes()) low.reject("input and output differ in size");
  const CheckFn check = check_of(x.dtype);
  if (!check) low.reject("its elements are no integers");
  const std::vector<std::int64_t> limits = low.attrs().integers("limits", {});
  if (limits.size() > 1 && (x.dims.empty() || static_cast<std::int64_t>(limits.size()) != x.dims.back())) {
    low.reject("there is not one limit for each position of the last axis");
  }
  const char* text =
      limits.empty() ? "{what}{place} is 0" : "{what}{place} = {value} is not in [{least}, {size})";
  Rule rule{limits, low.attrs().integer("least", 0), low.attrs().flag("from_end"),
            low.attrs().text("what", "indices"), low.attrs().text("message", text)};
  low.describe("check", "", 0);
  if (x.elements() == 0) return;
  const Location target = copies ? low.at(low.output(0)) : Location{};
  CheckPlan plan{x, rows_of(x), std::move(rule), low.task().name, copies ? x.bytes() : 0};
  low.emit(std::make_unique<CheckStep>(std::move(plan), check, low.at(x), target));
}

}  // namespace npu
