// Names and sizes of element types.
#include "core/dtype.h"

#include <array>

#include "core/errors.h"

namespace npu {
namespace {

struct Entry {
  std::string_view name;
  std::size_t size;
};

constexpr std::array<Entry, kDTypeCount> kTypes = {{
    {"float32", 4},
    {"float64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"bool", 1},
}};

}  // namespace

DType parse_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].name == name) return static_cast<DType>(i);
  }
  throw InvalidArgument("unknown dtype '" + std::string(name) + "'");
}

std::string_view dtype_name(DType type) { return kTypes[static_cast<std::size_t>(type)].name; }

std::size_t dtype_size(DType type) { return kTypes[static_cast<std::size_t>(type)].size; }

}  // namespace npu
