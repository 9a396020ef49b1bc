// Element types and their names, shared by every part of the runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace npu {

enum class DType : std::uint8_t {
  Float32,
  Float64,
  Float16,
  BFloat16,
  Int8,
  Int16,
  Int32,
  Int64,
  UInt8,
  UInt16,
  UInt32,
  UInt64,
  Bool,
};

inline constexpr int kDTypeCount = 13;

// Raises InvalidArgument for an unknown name.
DType parse_dtype(std::string_view name);
std::string_view dtype_name(DType type);
std::size_t dtype_size(DType type);

inline bool is_float(DType type) { return type <= DType::BFloat16; }

}  // namespace npu
