// cumulative: running sum, product, maximum, minimum and log-sum-exp along an axis.
#include <cmath>
#include <limits>

#include "aicpu/dispatch.h"
#include "core/parallel.h"

namespace npu::aicpu {
namespace {

constexpr double kCycles = 7;  // of an element

// Integers wrap around; computed unsigned, where overflow is defined.
template <class T>
T wrapping(T a, T b, bool multiply) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    return static_cast<T>(multiply ? x * y : x + y);
  } else {
    return static_cast<T>(multiply ? a * b : a + b);
  }
}

template <class A>
struct Sum {
  static A zero() { return A{0}; }
  static A step(A total, A value) { return wrapping(total, value, false); }
};
template <class A>
struct Product {
  static A zero() { return A{1}; }
  static A step(A total, A value) { return wrapping(total, value, true); }
};
template <class A>
struct Maximum {
  static A zero() {
    return std::numeric_limits<A>::has_infinity ? -std::numeric_limits<A>::infinity()
                                                : std::numeric_limits<A>::lowest();
  }
  static A step(A total, A value) { return is_less(total, value) ? value : total; }
};
template <class A>
struct Minimum {
  static A zero() {
    return std::numeric_limits<A>::has_infinity ? std::numeric_limits<A>::infinity()
                                                : std::numeric_limits<A>::max();
  }
  static A step(A total, A value) {
    if constexpr (std::is_floating_point_v<A>) {
      if (std::isnan(total) || std::isnan(value)) return std::numeric_limits<A>::quiet_NaN();
    }
    return value < total ? value : total;
  }
};
template <class A>
struct LogSumExp {
  static A zero() { return -std::numeric_limits<A>::infinity(); }
  static A step(A total, A value) {
    const A most = std::max(total, value);
    if (std::isinf(most)) return most;
    return most + std::log(std::exp(total - most) + std::exp(value - most));
  }
};

// `where`, if given, receives the position of each maximum or minimum.
template <class T, class Op, class A>
void scan(const AxisView& view, const T* x, T* y, std::int64_t* where, bool exclusive, bool reverse) {
  const std::int64_t lanes = view.outer * view.inner;
  parallel_for(lanes, grain(kCycles, view.size), [&](std::int64_t lo, std::int64_t hi) {
    for (std::int64_t lane = lo; lane < hi; ++lane) {
      const std::int64_t base = lane / view.inner * view.size * view.inner + lane % view.inner;
      A total = Op::zero();
      std::int64_t from = 0;
      for (std::int64_t i = 0; i < view.size; ++i) {
        const std::int64_t at = reverse ? view.size - 1 - i : i;
        const std::int64_t place = base + at * view.inner;
        const A value = value_of(x[place]);
        if (exclusive) y[place] = static_cast<T>(total);
        const A next = i == 0 && !exclusive ? value : Op::step(total, value);
        if (i == 0 || next == value || value != value) from = at;
        total = next;
        if (!exclusive) y[place] = static_cast<T>(total);
        if (where) where[place] = from;
      }
    }
  });
}

template <class T>
Status run_scan(Call& call, const AxisView& view) {
  using A = decltype(value_of(T{}));
  const std::string name = call.attrs.text("kind", "sum");
  const bool exclusive = call.attrs.flag("exclusive"), reverse = call.attrs.flag("reverse");
  const T* x = call.inputs[0].as<T>();
  T* y = call.outputs[0].as<T>();
  std::int64_t* where = call.outputs.size() > 1 ? call.outputs[1].as<std::int64_t>() : nullptr;
  if (name == "sum") return scan<T, Sum<A>, A>(view, x, y, where, exclusive, reverse), Status::ok();
  if (name == "prod") return scan<T, Product<A>, A>(view, x, y, where, exclusive, reverse), Status::ok();
  if (name == "max") return scan<T, Maximum<A>, A>(view, x, y, where, exclusive, reverse), Status::ok();
  if (name == "min") return scan<T, Minimum<A>, A>(view, x, y, where, exclusive, reverse), Status::ok();
  if constexpr (std::is_floating_point_v<A>) {
    if (name == "logsumexp")
      return scan<T, LogSumExp<A>, A>(view, x, y, where, exclusive, reverse), Status::ok();
  }
  return Status::error("unknown kind '" + name + "'");
}

// Outputs: values and, for max and min, int64 positions.
Status cumulative(Call& call) {
  if (call.inputs.size() != 1 || call.outputs.empty() || call.outputs.size() > 2) {
    return Status::error("takes one input and gives values and, if asked, positions");
  }
  const Tensor& x = call.inputs[0];
  const std::int64_t axis = call.attrs.integer("axis", 0);
  const AxisView view(x.dims, axis);
  if (!view.valid) return bad_axis(axis, x);
  if (call.outputs[0].dtype != x.dtype || call.outputs[0].elements() != x.elements()) {
    return Status::error("the output must match the input");
  }
  if (call.outputs.size() > 1 &&
      (call.outputs[1].dtype != DType::Int64 || call.outputs[1].elements() != x.elements())) {
    return Status::error("positions must be int64, as many as values");
  }
  return with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>)
      return unsupported_type(x.dtype);
    else
      return run_scan<T>(call, view);
  });
}

NPU_AICPU_KERNEL("cumulative", cumulative);

}  // namespace
}  // namespace npu::aicpu
