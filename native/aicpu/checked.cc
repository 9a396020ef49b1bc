// checked: a tensor of integers as it is; fails where an element is not allowed.
#include <algorithm>
#include <cstring>

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

template <class T>
Status check(const Tensor& x, const std::vector<std::int64_t>& limits, std::int64_t least,
             const std::string& what) {
  const T* values = x.as<T>();
  const std::int64_t n = x.elements();
  if (limits.empty()) {
    for (std::int64_t i = 0; i < n; ++i) {
      if (values[i] == T{}) {
        return Status::error("Integer division by zero: " + what + position(x.dims, i) +
                             " is 0; divide by tf.where(divisor == 0, 1, divisor)");
      }
    }
    return Status::ok();
  }
  const auto columns = static_cast<std::int64_t>(limits.size());
  for (std::int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<std::int64_t>(values[i]);
    const std::int64_t limit = limits[static_cast<std::size_t>(i % columns)];
    if (value < least || value >= limit) {
      return Status::error(what + position(x.dims, i) + " = " + std::to_string(value) + " is not in [" +
                           std::to_string(std::max<std::int64_t>(least, 0)) + ", " + std::to_string(limit) +
                           "); check where it comes from, or clip it");
    }
  }
  return Status::ok();
}

// Attributes: limits (one for all elements, or one for each position of the last axis; none: elements must
// not be zero), least (the smallest value allowed), what (the name of the tensor in messages).
Status checked(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(1, 1));
  const Tensor& x = call.inputs[0];
  const Tensor& y = call.outputs[0];
  if (x.bytes() != y.bytes()) return Status::error("input and output differ in size");
  const std::vector<std::int64_t> limits = call.attrs.integers("limits", {});
  const std::int64_t least = call.attrs.integer("least", 0);
  const std::string what = call.attrs.text("what", "indices");
  NPU_RETURN_IF_ERROR(with_type(x.dtype, [&](auto zero) -> Status {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      return check<T>(x, limits, least, what);
    }
    return unsupported_type(x.dtype);
  }));
  if (x.bytes()) std::memcpy(y.data, x.data, x.bytes());
  return Status::ok();
}

NPU_AICPU_KERNEL("checked", checked);

}  // namespace
}  // namespace npu::aicpu
