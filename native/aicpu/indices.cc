// nonzero, where_indices, compress, bincount, reverse_sequence.
#include <algorithm>
#include <cstring>

#include "aicpu/dispatch.h"

namespace npu::aicpu {
namespace {

template <class T>
std::vector<std::int64_t> nonzero_positions(const Tensor& x) {
  std::vector<std::int64_t> found;
  const T* values = x.as<T>();
  const std::int64_t n = x.elements();
  for (std::int64_t i = 0; i < n; ++i) {
    if (value_of(values[i]) != decltype(value_of(values[i])){}) found.push_back(i);
  }
  return found;
}

// Coordinates of the nonzero elements in row-major order; `by_axis` puts one axis in each row.
Status find_nonzero(Call& call, bool by_axis) {
  NPU_RETURN_IF_ERROR(call.expect(1, 1));
  const Tensor& x = call.inputs[0];
  Tensor& y = call.outputs[0];
  if (y.dtype != DType::Int64) return Status::error("the output must be int64");
  return with_type(x.dtype, [&](auto zero) {
    const std::vector<std::int64_t> found = nonzero_positions<decltype(zero)>(x);
    const auto rank = static_cast<std::int64_t>(x.rank());
    const auto n = static_cast<std::int64_t>(found.size());
    if (y.elements() < rank * n) return Status::error("the output is too small");
    std::int64_t* out = y.as<std::int64_t>();
    for (std::int64_t i = 0; i < n; ++i) {
      std::int64_t rest = found[static_cast<std::size_t>(i)];
      for (std::int64_t axis = rank; axis-- > 0;) {
        const std::int64_t dim = x.dims[static_cast<std::size_t>(axis)];
        out[by_axis ? axis * n + i : i * rank + axis] = rest % dim;
        rest /= dim;
      }
    }
    call.set_shape(0, by_axis ? Dims{rank, n} : Dims{n, rank});
    return Status::ok();
  });
}

Status nonzero(Call& call) { return find_nonzero(call, true); }
Status where_indices(Call& call) { return find_nonzero(call, false); }

// Inputs: data, condition (bool vector). Without an axis the data is taken as flat.
Status compress(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(2, 1));
  const Tensor& x = call.inputs[0];
  const Tensor& condition = call.inputs[1];
  Tensor& y = call.outputs[0];
  if (condition.dtype != DType::Bool) return Status::error("the condition must be bool");
  const bool flat = !call.attrs.has("axis");
  const Dims dims = flat ? Dims{x.elements()} : x.dims;
  const std::int64_t axis = flat ? 0 : call.attrs.integer("axis");
  const AxisView view(dims, axis);
  if (!view.valid) return bad_axis(axis, x);
  if (condition.elements() > view.size) return Status::error("the condition is longer than the axis");
  std::vector<std::int64_t> kept;
  for (std::int64_t i = 0; i < condition.elements(); ++i) {
    if (condition.as<bool>()[i]) kept.push_back(i);
  }
  const auto count = static_cast<std::int64_t>(kept.size());
  if (y.dtype != x.dtype || y.elements() < view.outer * count * view.inner) {
    return Status::error("the output is too small or of another type");
  }
  const std::size_t block = static_cast<std::size_t>(view.inner) * dtype_size(x.dtype);
  char* target = y.as<char>();
  for (std::int64_t o = 0; o < view.outer; ++o) {
    for (const std::int64_t i : kept) {
      std::memcpy(target, x.as<char>() + static_cast<std::size_t>(o * view.size + i) * block, block);
      target += block;
    }
  }
  Dims actual = dims;
  actual[static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(dims.size()) : axis)] = count;
  call.set_shape(0, actual);
  return Status::ok();
}

template <class Index, class T>
Status count_values(const Tensor& x, const T* weights, T* bins, std::int64_t size, bool binary) {
  std::fill_n(bins, size, T{});
  const Index* values = x.as<Index>();
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    const auto value = static_cast<std::int64_t>(values[i]);
    if (value < 0) return Status::error("value " + std::to_string(value) + " is negative");
    if (value >= size) continue;
    if (binary) {
      bins[value] = T{1};
    } else {
      bins[value] += weights ? weights[i] : T{1};
    }
  }
  return Status::ok();
}

// Inputs: values and, if any, weights. Values at or above the output's size are not counted.
Status bincount(Call& call) {
  if (call.inputs.empty() || call.inputs.size() > 2 || call.outputs.size() != 1) {
    return Status::error("takes values and weights, gives one output");
  }
  const Tensor& x = call.inputs[0];
  const Tensor* weights = call.inputs.size() == 2 && call.inputs[1].elements() ? &call.inputs[1] : nullptr;
  const Tensor& y = call.outputs[0];
  if (weights && (weights->dtype != y.dtype || weights->elements() != x.elements())) {
    return Status::error("weights must match the values in number and the output in type");
  }
  return with_index_type(x.dtype, [&](auto index) {
    return with_type(y.dtype, [&](auto zero) {
      using T = decltype(zero);
      if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
        return count_values<decltype(index), T>(x, weights ? weights->as<T>() : nullptr, y.as<T>(),
                                                y.elements(), call.attrs.flag("binary"));
      } else {
        return unsupported_type(y.dtype);
      }
    });
  });
}

// Inputs: data, lengths. Reverses the first lengths[b] steps along time_axis of every batch element.
Status reverse_sequence(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(2, 1));
  const Tensor& x = call.inputs[0];
  const Tensor& lengths = call.inputs[1];
  const auto rank = static_cast<std::int64_t>(x.rank());
  const std::int64_t batch_axis = call.attrs.integer("batch_axis", 1);
  const std::int64_t time_axis = call.attrs.integer("time_axis", 0);
  const AxisView batch(x.dims, batch_axis);
  const AxisView time(x.dims, time_axis);
  if (!batch.valid || !time.valid || (batch_axis - time_axis) % rank == 0) return bad_axis(batch_axis, x);
  if (call.outputs[0].bytes() != x.bytes()) return Status::error("the output must have the input's size");
  if (lengths.elements() != batch.size) return Status::error("one length for each batch element is needed");
  return with_index_type(lengths.dtype, [&](auto zero) {
    const auto* given = lengths.as<decltype(zero)>();
    const std::size_t block =
        static_cast<std::size_t>(std::min(batch.inner, time.inner)) * dtype_size(x.dtype);
    const std::int64_t blocks = block ? static_cast<std::int64_t>(x.bytes() / block) : 0;
    const std::int64_t unit = std::min(batch.inner, time.inner);
    for (std::int64_t i = 0; i < blocks; ++i) {
      const std::int64_t b = i * unit / batch.inner % batch.size;
      const std::int64_t t = i * unit / time.inner % time.size;
      const auto length = static_cast<std::int64_t>(given[b]);
      if (length < 0 || length > time.size)
        return Status::error("length " + std::to_string(length) + " is out of range", "index");
      const std::int64_t from = t < length ? i + (length - 1 - 2 * t) * (time.inner / unit) : i;
      std::memcpy(call.outputs[0].as<char>() + static_cast<std::size_t>(i) * block,
                  x.as<char>() + static_cast<std::size_t>(from) * block, block);
    }
    return Status::ok();
  });
}

NPU_AICPU_KERNEL("nonzero", nonzero);
NPU_AICPU_KERNEL("where_indices", where_indices);
NPU_AICPU_KERNEL("compress", compress);
NPU_AICPU_KERNEL("bincount", bincount);
NPU_AICPU_KERNEL("reverse_sequence", reverse_sequence);

}  // namespace
}  // namespace npu::aicpu
