// checked: a tensor of integers as it is; fails where an element is not allowed.
#include <algorithm>
#include <cstring>
#include <string_view>

#include "aicpu/dispatch.h"

namespace npu::aicpu {
namespace {

// "[1,0,2]": where an element lies.
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

// What elements may be, and how to say that one is not.
struct Rule {
  std::vector<std::int64_t> sizes;  // for all elements, or for each position of the last axis; none: not zero
  std::int64_t least;
  bool from_end;  // negative indices count from the end
  std::string what, message;

  std::int64_t low(std::size_t column) const { return from_end ? -sizes[column] : least; }

  Status broken(const Tensor& x, std::int64_t at, std::int64_t value) const {
    const std::size_t column = sizes.empty() ? 0 : static_cast<std::size_t>(at) % sizes.size();
    std::string text = message;
    fill(text, "{what}", what);
    fill(text, "{place}", position(x.dims, at));
    fill(text, "{value}", std::to_string(value));
    if (sizes.empty()) return Status::error(text, "division");
    fill(text, "{least}", std::to_string(from_end ? low(column) : std::max<std::int64_t>(least, 0)));
    fill(text, "{size}", std::to_string(sizes[column]));
    return Status::error(text, "index");
  }
};

// Whether any element is out of range, without a branch for each so that the loop is vectorised.
template <class T>
bool any_outside(const T* values, std::int64_t n, std::int64_t low, std::int64_t size) {
  bool outside = false;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<std::int64_t>(values[i]);
    outside |= (value < low) | (value >= size);
  }
  return outside;
}

template <class T>
Status check(const Tensor& x, const Rule& rule) {
  const T* values = x.as<T>();
  const std::int64_t n = x.elements();
  if (rule.sizes.empty()) {
    const T* zero = std::find(values, values + n, T{});
    return zero == values + n ? Status::ok() : rule.broken(x, zero - values, 0);
  }
  const std::size_t columns = rule.sizes.size();
  if (columns == 1 && !any_outside(values, n, rule.low(0), rule.sizes[0])) return Status::ok();
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<std::int64_t>(values[i]);
    const std::size_t column = static_cast<std::size_t>(i) % columns;
    if (value < rule.low(column) || value >= rule.sizes[column]) return rule.broken(x, i, value);
  }
  return Status::ok();
}

// Attributes: limits (one for all elements, or one for each position of the last axis; none: elements must
// not be zero), least (the smallest value allowed) or from_end (it is minus the limit), what (the name of the
// tensor) and message (with {what}, {place}, {value}, {least}, {size} in it).
Status checked(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(1, 1));
  const Tensor& x = call.inputs[0];
  const Tensor& y = call.outputs[0];
  if (x.bytes() != y.bytes()) return Status::error("input and output differ in size");
  const std::vector<std::int64_t> limits = call.attrs.integers("limits", {});
  const char* text =
      limits.empty() ? "{what}{place} is 0" : "{what}{place} = {value} is not in [{least}, {size})";
  const Rule rule{limits, call.attrs.integer("least", 0), call.attrs.flag("from_end"),
                  call.attrs.text("what", "indices"), call.attrs.text("message", text)};
  NPU_RETURN_IF_ERROR(with_type(x.dtype, [&](auto zero) -> Status {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      return check<T>(x, rule);
    }
    return unsupported_type(x.dtype);
  }));
  if (x.bytes() && y.data != x.data) std::memcpy(y.data, x.data, x.bytes());
  return Status::ok();
}

NPU_AICPU_KERNEL("checked", checked);

}  // namespace
}  // namespace npu::aicpu
