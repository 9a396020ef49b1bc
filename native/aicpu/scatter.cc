// scatter_elements and scatter_nd, with reductions.
#include <cstring>
#include <string_view>

#include "aicpu/dispatch.h"

namespace npu::aicpu {
namespace {

struct Replace {
  template <class T>
  static T apply(T, T update) {
    return update;
  }
};
struct Add {
  template <class T>
  static T apply(T old, T update) {
    if constexpr (std::is_same_v<T, bool>)
      return old || update;
    else
      return static_cast<T>(value_of(old) + value_of(update));
  }
};
struct Mul {
  template <class T>
  static T apply(T old, T update) {
    if constexpr (std::is_same_v<T, bool>)
      return old && update;
    else
      return static_cast<T>(value_of(old) * value_of(update));
  }
};
struct Max {
  template <class T>
  static T apply(T old, T update) {
    return is_less(old, update) ? update : old;
  }
};
struct Min {
  template <class T>
  static T apply(T old, T update) {
    return is_less(update, old) ? update : old;
  }
};

// Calls body(T{}, Op{}): plain replacement only needs the width of an element.
template <class Body>
Status with_reduction(const std::string& name, DType type, Body&& body) {
  if (name == "none") return with_word(type, [&](auto word) { return body(word, Replace{}); });
  return with_type(type, [&](auto zero) {
    if (name == "add") return body(zero, Add{});
    if (name == "mul") return body(zero, Mul{});
    if (name == "max") return body(zero, Max{});
    if (name == "min") return body(zero, Min{});
    return Status::error("unknown reduction '" + name + "'");
  });
}

Status out_of_range(std::int64_t index, std::int64_t size) {
  return Status::error("index " + std::to_string(index) + " is out of range for a dimension of " +
                       std::to_string(size));
}

Status check_operands(const Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(3, 1));
  const Tensor& data = call.inputs[0];
  if (call.inputs[2].dtype != data.dtype || call.outputs[0].dtype != data.dtype) {
    return Status::error("data, updates and output must have one element type");
  }
  if (call.outputs[0].dims != data.dims) return Status::error("the output must have the data's shape");
  return Status::ok();
}

void copy_data(const Call& call) {
  const Tensor& data = call.inputs[0];
  if (call.outputs[0].data != data.data && data.bytes()) {
    std::memmove(call.outputs[0].data, data.data, data.bytes());
  }
}

// Steps through the updates and through the matching places of the data, which may be larger.
template <class T, class Index, class Op>
Status scatter_along(const Call& call, std::size_t axis, Op) {
  const Dims& shape = call.inputs[2].dims;
  const Dims strides = contiguous_strides(call.inputs[0].dims);
  const std::int64_t size = call.inputs[0].dims[axis];
  const Index* indices = call.inputs[1].as<Index>();
  const T* updates = call.inputs[2].as<T>();
  T* out = call.outputs[0].as<T>();
  Dims position(shape.size(), 0);
  const std::int64_t count = call.inputs[2].elements();
  for (std::int64_t i = 0; i < count; ++i) {
    auto index = static_cast<std::int64_t>(indices[i]);
    if (index < -size || index >= size) return out_of_range(index, size);
    if (index < 0) index += size;
    std::int64_t place = index * strides[axis];
    for (std::size_t d = 0; d < shape.size(); ++d) place += d == axis ? 0 : position[d] * strides[d];
    out[place] = Op::apply(out[place], updates[i]);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++position[d] < shape[d]) break;
      position[d] = 0;
    }
  }
  return Status::ok();
}

// Inputs: data, indices, updates (same shape as indices).
Status scatter_elements(Call& call) {
  NPU_RETURN_IF_ERROR(check_operands(call));
  const Tensor& data = call.inputs[0];
  const Tensor& indices = call.inputs[1];
  const Tensor& updates = call.inputs[2];
  std::int64_t axis = call.attrs.integer("axis", 0);
  const auto rank = static_cast<std::int64_t>(data.rank());
  if (axis < -rank || axis >= rank) return bad_axis(axis, data);
  if (axis < 0) axis += rank;
  if (indices.dims != updates.dims || indices.rank() != data.rank()) {
    return Status::error("indices and updates must have one shape, of the data's rank");
  }
  for (std::size_t d = 0; d < data.rank(); ++d) {
    if (static_cast<std::int64_t>(d) != axis && indices.dims[d] > data.dims[d]) {
      return Status::error("indices reach outside the data");
    }
  }
  copy_data(call);
  return with_index_type(indices.dtype, [&](auto index) {
    return with_reduction(call.attrs.text("reduction", "none"), data.dtype, [&](auto zero, auto op) {
      return scatter_along<decltype(zero), decltype(index)>(call, static_cast<std::size_t>(axis), op);
    });
  });
}

template <class T, class Index, class Op>
Status scatter_slices(const Call& call, std::size_t depth, std::int64_t count, std::int64_t slice, Op) {
  const Dims& shape = call.inputs[0].dims;
  const Dims strides = contiguous_strides(shape);
  const Index* indices = call.inputs[1].as<Index>();
  const T* updates = call.inputs[2].as<T>();
  T* out = call.outputs[0].as<T>();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t place = 0;
    for (std::size_t d = 0; d < depth; ++d) {
      auto index = static_cast<std::int64_t>(
          indices[i * static_cast<std::int64_t>(depth) + static_cast<std::int64_t>(d)]);
      if (index < -shape[d] || index >= shape[d]) return out_of_range(index, shape[d]);
      place += (index < 0 ? index + shape[d] : index) * strides[d];
    }
    for (std::int64_t j = 0; j < slice; ++j)
      out[place + j] = Op::apply(out[place + j], updates[i * slice + j]);
  }
  return Status::ok();
}

// Inputs: data, indices (..., depth), updates (..., slice).
Status scatter_nd(Call& call) {
  NPU_RETURN_IF_ERROR(check_operands(call));
  const Tensor& data = call.inputs[0];
  const Tensor& indices = call.inputs[1];
  if (indices.rank() == 0) return Status::error("indices need at least one dimension");
  const std::int64_t depth = indices.dims.back();
  if (depth < 0 || depth > static_cast<std::int64_t>(data.rank()))
    return Status::error("indices are too deep");
  std::int64_t slice = 1;
  for (std::size_t d = static_cast<std::size_t>(depth); d < data.rank(); ++d) slice *= data.dims[d];
  std::int64_t count = 1;
  for (std::size_t d = 0; d + 1 < indices.rank(); ++d) count *= indices.dims[d];
  if (call.inputs[2].elements() != count * slice) return Status::error("updates do not match the indices");
  copy_data(call);
  if (count == 0) return Status::ok();
  return with_index_type(indices.dtype, [&](auto index) {
    return with_reduction(call.attrs.text("reduction", "none"), data.dtype, [&](auto zero, auto op) {
      return scatter_slices<decltype(zero), decltype(index)>(call, static_cast<std::size_t>(depth), count,
                                                             slice, op);
    });
  });
}

NPU_AICPU_KERNEL("scatter_elements", scatter_elements);
NPU_AICPU_KERNEL("scatter_nd", scatter_nd);

}  // namespace
}  // namespace npu::aicpu
