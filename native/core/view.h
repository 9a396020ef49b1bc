// A view: typed, strided access to a part of a buffer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace npu {

using Dims = std::vector<std::int64_t>;

inline constexpr std::size_t kMaxRank = 12;

struct View {
  int buffer = -1;
  DType dtype = DType::Float32;
  Dims dims;
  Dims strides;             // in elements, one per dimension
  std::int64_t offset = 0;  // in elements

  std::int64_t elements() const;
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * dtype_size(dtype); }
  std::int64_t byte_offset() const { return offset * static_cast<std::int64_t>(dtype_size(dtype)); }
  bool contiguous() const;
};

Dims contiguous_strides(const Dims& dims);
std::string to_string(const Dims& dims);
std::string to_string(const View& view);

// Raise InvalidArgument, with `what` in the message, unless every element is within `nbytes`.
void check_view(const View& view, std::size_t nbytes, const std::string& what);
// The same for the dense row-major block at the view's offset.
void check_dense(const View& view, std::size_t nbytes, const std::string& what);

}  // namespace npu
