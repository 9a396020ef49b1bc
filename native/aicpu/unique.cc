// unique: distinct elements, or distinct rows with axis = 0.
#include <algorithm>
#include <memory>
#include <numeric>

#include "aicpu/dispatch.h"

namespace npu::aicpu {
namespace {

// The distinct rows of an (n, width) matrix.
struct Groups {
  std::vector<std::int64_t> first;    // first row of each group, in output order
  std::vector<std::int64_t> inverse;  // group of each row
  std::vector<std::int64_t> counts;
};

template <class T>
int compare_rows(const T* a, const T* b, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    if (is_less(a[i], b[i])) return -1;
    if (is_less(b[i], a[i])) return 1;
  }
  return 0;
}

template <class T>
bool has_nan(const T* row, std::int64_t width) {
  return std::any_of(row, row + width, [](T x) { return !(value_of(x) == value_of(x)); });
}

template <class T>
Groups find_groups(const T* rows, std::int64_t n, std::int64_t width, bool sorted, bool equal_nan) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const auto compare = [&](std::int64_t a, std::int64_t b) {
    return compare_rows(rows + a * width, rows + b * width, width);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return compare(a, b) < 0; });
  Groups groups;
  groups.inverse.resize(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || compare(order[i - 1], order[i]) != 0 ||
        (!equal_nan && has_nan(rows + order[i] * width, width))) {
      groups.first.push_back(order[i]);
      groups.counts.push_back(0);
    }
    ++groups.counts.back();
    groups.inverse[static_cast<std::size_t>(order[i])] = static_cast<std::int64_t>(groups.first.size()) - 1;
  }
  if (sorted) return groups;

  // In the order of first occurrence.
  std::vector<std::int64_t> ranking(groups.first.size());
  std::iota(ranking.begin(), ranking.end(), std::int64_t{0});
  std::sort(ranking.begin(), ranking.end(), [&](std::int64_t a, std::int64_t b) {
    return groups.first[static_cast<std::size_t>(a)] < groups.first[static_cast<std::size_t>(b)];
  });
  Groups result;
  std::vector<std::int64_t> place(ranking.size());
  for (std::size_t i = 0; i < ranking.size(); ++i) {
    const auto from = static_cast<std::size_t>(ranking[i]);
    place[from] = static_cast<std::int64_t>(i);
    result.first.push_back(groups.first[from]);
    result.counts.push_back(groups.counts[from]);
  }
  for (const std::int64_t group : groups.inverse)
    result.inverse.push_back(place[static_cast<std::size_t>(group)]);
  return result;
}

Status give_indices(Call& call, std::size_t output, const std::vector<std::int64_t>& values) {
  if (output >= call.outputs.size()) return Status::ok();
  NPU_RETURN_IF_ERROR(write_indices(values, call.outputs[output]));
  call.set_shape(output, {static_cast<std::int64_t>(values.size())});
  return Status::ok();
}

// View slices along an axis as rows of a matrix.
template <class T>
std::unique_ptr<T[]> rows_along(const T* x, const AxisView& view) {
  auto rows = std::make_unique<T[]>(static_cast<std::size_t>(view.outer * view.size * view.inner));
  T* target = rows.get();
  for (std::int64_t i = 0; i < view.size; ++i) {
    for (std::int64_t o = 0; o < view.outer; ++o) {
      target = std::copy_n(x + (o * view.size + i) * view.inner, view.inner, target);
    }
  }
  return rows;
}

// Outputs: values, then as many as are given of first indices, inverse, counts. With an axis, slices along it
// are compared; without one, elements.
Status unique(Call& call) {
  if (call.inputs.size() != 1 || call.outputs.empty() || call.outputs.size() > 4) {
    return Status::error("takes one input and gives one to four outputs");
  }
  const Tensor& x = call.inputs[0];
  const bool by_slice = call.attrs.has("axis");
  const Dims dims = by_slice ? x.dims : Dims{x.elements()};
  const std::int64_t given = by_slice ? call.attrs.integer("axis") : 0;
  const AxisView view(dims, given);
  if (!view.valid) return bad_axis(given, x);
  Tensor& values = call.outputs[0];
  if (values.dtype != x.dtype || values.elements() < x.elements()) {
    return Status::error("the values output must have the input's type and size");
  }
  return with_type(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* data = x.as<T>();
    std::unique_ptr<T[]> turned;
    if (view.outer > 1) turned = rows_along(data, view);
    const std::int64_t width = view.outer * view.inner;
    const Groups groups = find_groups(view.outer > 1 ? turned.get() : data, view.size, width,
                                      call.attrs.flag("sorted", true), call.attrs.flag("equal_nan", true));
    T* target = values.as<T>();
    for (std::int64_t o = 0; o < view.outer; ++o) {
      for (const std::int64_t i : groups.first) {
        target = std::copy_n(data + (o * view.size + i) * view.inner, view.inner, target);
      }
    }
    Dims actual = dims;
    actual[static_cast<std::size_t>(given < 0 ? given + static_cast<std::int64_t>(dims.size()) : given)] =
        static_cast<std::int64_t>(groups.first.size());
    call.set_shape(0, actual);
    NPU_RETURN_IF_ERROR(give_indices(call, 1, groups.first));
    NPU_RETURN_IF_ERROR(give_indices(call, 2, groups.inverse));
    return give_indices(call, 3, groups.counts);
  });
}

NPU_AICPU_KERNEL("unique", unique);

}  // namespace
}  // namespace npu::aicpu
