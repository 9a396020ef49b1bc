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
// NaN propagates from either operand; is_less orders it as the largest number.
struct Max {
  template <class T>
  static T apply(T old, T update) {
    return is_less(old, update) ? update : old;
  }
};
struct Min {
  template <class T>
  static T apply(T old, T update) {
    const bool old_counts = value_of(old) == value_of(old);
    const bool update_counts = value_of(update) == value_of(update);
    return old_counts && (!update_counts || is_less(update, old)) ? update : old;
  }
};

// Destination of the updates: the offset of each slice of `size` elements.
struct Slices {
  std::vector<std::int64_t> places;
  std::int64_t size = 1;
};

template <class T, class Op>
Status apply(const Call& call, const Slices& slices) {
  const T* update = call.inputs[2].as<T>();
  for (const std::int64_t place : slices.places) {
    T* out = call.outputs[0].as<T>() + place;
    for (std::int64_t i = 0; i < slices.size; ++i) out[i] = Op::apply(out[i], *update++);
  }
  return Status::ok();
}

template <class Op>
Status reduce(const Call& call, const Slices& slices) {
  return with_type(call.inputs[0].dtype, [&](auto zero) { return apply<decltype(zero), Op>(call, slices); });
}

// Copies the data, then updates it. Replacement without reduction depends only on the element size.
Status update(const Call& call, const Slices& slices) {
  const Tensor& data = call.inputs[0];
  if (call.outputs[0].data != data.data && data.bytes()) {
    std::memmove(call.outputs[0].data, data.data, data.bytes());
  }
  const std::string name = call.attrs.text("reduction", "none");
  if (name == "none") {
    return with_word(data.dtype, [&](auto word) { return apply<decltype(word), Replace>(call, slices); });
  }
  if (name == "add") return reduce<Add>(call, slices);
  if (name == "mul") return reduce<Mul>(call, slices);
  if (name == "max") return reduce<Max>(call, slices);
  if (name == "min") return reduce<Min>(call, slices);
  return Status::error("unknown reduction '" + name + "'");
}

Status out_of_range(std::int64_t index, std::int64_t size) {
  return Status::error(
      "index " + std::to_string(index) + " is out of range for a dimension of " + std::to_string(size),
      "index");
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

// Inputs: data, indices, updates (same shape as indices).
Status scatter_elements(Call& call) {
  NPU_RETURN_IF_ERROR(check_operands(call));
  const Tensor& data = call.inputs[0];
  const Dims& shape = call.inputs[1].dims;
  std::int64_t axis = call.attrs.integer("axis", 0);
  const auto rank = static_cast<std::int64_t>(data.rank());
  if (axis < -rank || axis >= rank) return bad_axis(axis, data);
  if (axis < 0) axis += rank;
  if (shape != call.inputs[2].dims || shape.size() != data.rank()) {
    return Status::error("indices and updates must have one shape, of the data's rank");
  }
  const auto along = static_cast<std::size_t>(axis);
  for (std::size_t d = 0; d < data.rank(); ++d) {
    if (d != along && shape[d] > data.dims[d]) return Status::error("indices reach outside the data");
  }
  Slices slices;
  NPU_RETURN_IF_ERROR(read_indices(call.inputs[1], slices.places));
  const Dims strides = contiguous_strides(data.dims);
  const std::int64_t size = data.dims[along];
  Dims position(shape.size(), 0);
  for (std::int64_t& place : slices.places) {
    if (place < -size || place >= size) return out_of_range(place, size);
    place = (place < 0 ? place + size : place) * strides[along];
    for (std::size_t d = 0; d < shape.size(); ++d) place += d == along ? 0 : position[d] * strides[d];
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++position[d] < shape[d]) break;
      position[d] = 0;
    }
  }
  return update(call, slices);
}

// Inputs: data, indices (..., depth), updates (..., slice).
Status scatter_nd(Call& call) {
  NPU_RETURN_IF_ERROR(check_operands(call));
  const Dims& shape = call.inputs[0].dims;
  const Tensor& indices = call.inputs[1];
  if (indices.rank() == 0) return Status::error("indices need at least one dimension");
  const auto depth = static_cast<std::size_t>(indices.dims.back());
  if (depth > shape.size()) return Status::error("indices are too deep");
  Slices slices;
  for (std::size_t d = depth; d < shape.size(); ++d) slices.size *= shape[d];
  std::int64_t count = 1;
  for (std::size_t d = 0; d + 1 < indices.rank(); ++d) count *= indices.dims[d];
  if (call.inputs[2].elements() != count * slices.size)
    return Status::error("updates do not match the indices");
  std::vector<std::int64_t> coordinates;
  NPU_RETURN_IF_ERROR(read_indices(indices, coordinates));
  const Dims strides = contiguous_strides(shape);
  auto next = coordinates.begin();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t place = 0;
    for (std::size_t d = 0; d < depth; ++d, ++next) {
      if (*next < -shape[d] || *next >= shape[d]) return out_of_range(*next, shape[d]);
      place += (*next < 0 ? *next + shape[d] : *next) * strides[d];
    }
    slices.places.push_back(place);
  }
  return update(call, slices);
}

NPU_AICPU_KERNEL("scatter_elements", scatter_elements);
NPU_AICPU_KERNEL("scatter_nd", scatter_nd);

}  // namespace
}  // namespace npu::aicpu
