// topk, sort, argsort: along the last axis, equal values in the order of their indices.
#include <algorithm>
#include <numeric>

#include "aicpu/dispatch.h"
#include "core/parallel.h"

namespace npu::aicpu {
namespace {

constexpr double kCycles = 15;  // of an element

struct Rows {
  std::int64_t count = 1;
  std::int64_t size = 1;

  explicit Rows(const Tensor& tensor) {
    if (!tensor.dims.empty()) size = tensor.dims.back();
    count = size ? tensor.elements() / size : 0;
  }
};

template <class T>
struct Item {
  T value;
  std::int64_t index;
};

// Strict order: by value, then by index; descending keeps the lowest index first as well.
template <class T, bool kDescending>
bool comes_first(const Item<T>& a, const Item<T>& b) {
  if constexpr (kDescending) {
    if (is_less(b.value, a.value)) return true;
    if (is_less(a.value, b.value)) return false;
  } else {
    if (is_less(a.value, b.value)) return true;
    if (is_less(b.value, a.value)) return false;
  }
  return a.index < b.index;
}

// Sorts the first `k` elements of a row.
template <class T>
void order_row(std::vector<Item<T>>& items, std::int64_t k, bool descending) {
  const auto compare = descending ? &comes_first<T, true> : &comes_first<T, false>;
  const auto middle = items.begin() + static_cast<std::ptrdiff_t>(k);
  if (middle != items.end()) std::nth_element(items.begin(), middle, items.end(), compare);
  std::sort(items.begin(), middle, compare);
}

// Writes the first k values and indices of every row; either target may be absent.
template <class T>
void order_rows(const T* source, Rows rows, std::int64_t k, bool descending, T* values,
                std::int64_t* indices) {
  parallel_for(rows.count, grain(kCycles, rows.size), [&](std::int64_t lo, std::int64_t hi) {
    std::vector<Item<T>> items(static_cast<std::size_t>(rows.size));
    for (std::int64_t r = lo; r < hi; ++r) {
      for (std::int64_t i = 0; i < rows.size; ++i) {
        items[static_cast<std::size_t>(i)] = {source[r * rows.size + i], i};
      }
      order_row(items, k, descending);
      for (std::int64_t i = 0; i < k; ++i) {
        const Item<T>& item = items[static_cast<std::size_t>(i)];
        if (values) values[r * k + i] = item.value;
        if (indices) indices[r * k + i] = item.index;
      }
    }
  });
}

Status order(const Call& call, std::int64_t k, bool descending, const Tensor* values, const Tensor* indices) {
  const Tensor& x = call.inputs[0];
  const Rows rows(x);
  if (k < 0 || k > rows.size) {
    return Status::error("k = " + std::to_string(k) + " is outside 0 to " + std::to_string(rows.size));
  }
  if (values && (values->dtype != x.dtype || values->elements() != rows.count * k)) {
    return Status::error("the values output does not match");
  }
  if (indices && indices->elements() != rows.count * k)
    return Status::error("the indices output does not match");
  // Indices are computed as int64, directly in the output if it has that type.
  const bool direct = !indices || indices->dtype == DType::Int64;
  std::vector<std::int64_t> made(direct ? 0 : static_cast<std::size_t>(rows.count * k));
  std::int64_t* places = !indices ? nullptr : direct ? indices->as<std::int64_t>() : made.data();
  NPU_RETURN_IF_ERROR(with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    order_rows<T>(x.as<T>(), rows, k, descending, values ? values->as<T>() : nullptr, places);
    return Status::ok();
  }));
  return direct ? Status::ok() : write_indices(made, *indices);
}

Status topk(Call& call) {
  if (call.inputs.size() > 1) return Status::error("takes one input; k is an attribute");
  NPU_RETURN_IF_ERROR(call.expect(1, 2));
  const bool descending = call.attrs.flag("largest", true);
  return order(call, call.attrs.integer("k"), descending, &call.outputs[0], &call.outputs[1]);
}

Status sort(Call& call) {
  if (call.inputs.size() != 1 || call.outputs.empty() || call.outputs.size() > 2) {
    return Status::error("takes one input and gives values and, if asked, indices");
  }
  const Tensor* indices = call.outputs.size() == 2 ? &call.outputs[1] : nullptr;
  const bool descending = call.attrs.flag("descending");
  return order(call, Rows(call.inputs[0]).size, descending, &call.outputs[0], indices);
}

Status argsort(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(1, 1));
  return order(call, Rows(call.inputs[0]).size, call.attrs.flag("descending"), nullptr, &call.outputs[0]);
}

NPU_AICPU_KERNEL("topk", topk);
NPU_AICPU_KERNEL("sort", sort);
NPU_AICPU_KERNEL("argsort", argsort);

}  // namespace
}  // namespace npu::aicpu
