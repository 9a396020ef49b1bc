// Choosing a kernel's instantiation by element type.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>

#include "aicpu/kernel.h"
#include "core/half.h"

namespace npu::aicpu {

#define NPU_RETURN_IF_ERROR(expression)                                  \
  do {                                                                   \
    if (::npu::aicpu::Status status_ = (expression); !status_.is_ok()) { \
      return status_;                                                    \
    }                                                                    \
  } while (false)

inline Status unsupported_type(DType type) {
  return Status::error("element type " + std::string(dtype_name(type)) + " is not supported");
}

// Calls body(T{}) with the C++ type of `type`.
template <class Body>
Status with_type(DType type, Body&& body) {
  switch (type) {
    case DType::Float32:
      return body(float{});
    case DType::Float64:
      return body(double{});
    case DType::Float16:
      return body(Float16{});
    case DType::BFloat16:
      return body(BFloat16{});
    case DType::Int8:
      return body(std::int8_t{});
    case DType::Int16:
      return body(std::int16_t{});
    case DType::Int32:
      return body(std::int32_t{});
    case DType::Int64:
      return body(std::int64_t{});
    case DType::UInt8:
      return body(std::uint8_t{});
    case DType::UInt16:
      return body(std::uint16_t{});
    case DType::UInt32:
      return body(std::uint32_t{});
    case DType::UInt64:
      return body(std::uint64_t{});
    case DType::Bool:
      return body(bool{});
  }
  return unsupported_type(type);
}

template <class Body>
Status with_index_type(DType type, Body&& body) {
  if (type == DType::Int64) return body(std::int64_t{});
  if (type == DType::Int32) return body(std::int32_t{});
  return Status::error("indices must be int32 or int64, not " + std::string(dtype_name(type)));
}

// Calls body with an unsigned word as wide as one element: for kernels that only move values.
template <class Body>
Status with_word(DType type, Body&& body) {
  switch (dtype_size(type)) {
    case 1:
      return body(std::uint8_t{});
    case 2:
      return body(std::uint16_t{});
    case 4:
      return body(std::uint32_t{});
    default:
      return body(std::uint64_t{});
  }
}

// All elements of a tensor of indices (int32 or int64), widened.
Status read_indices(const Tensor& tensor, std::vector<std::int64_t>& indices);
// Stores indices into a tensor of int32 or int64.
Status write_indices(const std::vector<std::int64_t>& indices, const Tensor& tensor);

// Runs `kernel` on float32 copies of all 16-bit float operands and rounds the outputs once.
Status run_promoted(Call& call, KernelFn kernel);

// Calls body(T{}, call) with float or double; 16-bit floats run as float. The first float operand decides.
template <class Body>
Status with_real(Call& call, Body) {
  for (const Tensor& tensor : call.inputs) {
    if (tensor.dtype == DType::Float32) return Body{}(float{}, call);
    if (tensor.dtype == DType::Float64) return Body{}(double{}, call);
    if (is_float(tensor.dtype)) return run_promoted(call, [](Call& made) { return Body{}(float{}, made); });
  }
  return Status::error("a float input is expected");
}

// 16-bit floats compare and accumulate as float, everything else as itself.
template <class T>
auto value_of(T value) {
  if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}

// NumPy's order: NaN is larger than everything else.
template <class T>
bool is_less(T a, T b) {
  const auto x = value_of(a);
  const auto y = value_of(b);
  if constexpr (std::is_floating_point_v<decltype(value_of(a))>) {
    if (std::isnan(x)) return false;
    if (std::isnan(y)) return true;
  }
  return x < y;
}

// A row-major tensor seen as (outer, size, inner) around one axis; a negative axis counts from the end.
struct AxisView {
  std::int64_t outer = 1, size = 1, inner = 1;
  bool valid = false;

  AxisView(const Dims& dims, std::int64_t axis) {
    const auto rank = static_cast<std::int64_t>(dims.size());
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank) return;
    valid = true;
    for (std::int64_t i = 0; i < rank; ++i) {
      (i < axis ? outer : i == axis ? size : inner) *= dims[static_cast<std::size_t>(i)];
    }
  }
};

inline Status bad_axis(std::int64_t axis, const Tensor& tensor) {
  return Status::error("axis " + std::to_string(axis) + " does not exist in " + to_string(tensor.dims));
}

}  // namespace npu::aicpu
