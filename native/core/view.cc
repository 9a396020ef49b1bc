// Views: sizes, printing, bounds.
#include "core/view.h"

#include <limits>

#include "core/errors.h"

namespace npu {
namespace {

using Wide = __int128;

constexpr Wide kLimit = std::numeric_limits<std::int64_t>::max() / 16;

void check_shape(const View& view, const std::string& what) {
  if (view.dims.size() > kMaxRank) {
    throw InvalidArgument(what + ": rank " + std::to_string(view.dims.size()) + " is above " +
                          std::to_string(kMaxRank));
  }
  if (view.dims.size() != view.strides.size()) {
    throw InvalidArgument(what + ": " + std::to_string(view.dims.size()) + " dimensions but " +
                          std::to_string(view.strides.size()) + " strides");
  }
  Wide total = 1;
  for (const std::int64_t dim : view.dims) {
    if (dim < 0) throw InvalidArgument(what + ": negative dimension in " + to_string(view.dims));
    total *= dim == 0 ? 1 : dim;
    if (total > kLimit) throw InvalidArgument(what + ": shape " + to_string(view.dims) + " is too large");
  }
  if (view.offset < 0) throw InvalidArgument(what + ": negative offset");
}

void check_range(const View& view, Wide lowest, Wide highest, std::size_t nbytes, const std::string& what) {
  const Wide size = dtype_size(view.dtype);
  if (lowest >= 0 && (highest + 1) * size <= static_cast<Wide>(nbytes)) return;
  throw InvalidArgument(what + ": view " + to_string(view) + " reaches outside its buffer of " +
                        std::to_string(nbytes) + " bytes");
}

}  // namespace

std::int64_t View::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t dim : dims) count *= dim;
  return count;
}

bool View::contiguous() const {
  if (elements() == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    if (dims[i] != 1 && strides[i] != expected) return false;
    expected *= dims[i];
  }
  return true;
}

Dims contiguous_strides(const Dims& dims) {
  Dims strides(dims.size());
  std::int64_t step = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = step;
    step *= dims[i] > 0 ? dims[i] : 1;
  }
  return strides;
}

std::string to_string(const Dims& dims) {
  std::string text = "(";
  for (std::size_t i = 0; i < dims.size(); ++i) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + ")";
}

std::string to_string(const View& view) {
  std::string text = std::string(dtype_name(view.dtype)) + to_string(view.dims);
  if (!view.contiguous()) text += " strides " + to_string(view.strides);
  if (view.offset) text += " offset " + std::to_string(view.offset);
  return text;
}

void check_view(const View& view, std::size_t nbytes, const std::string& what) {
  check_shape(view, what);
  if (view.elements() == 0) return;
  Wide lowest = view.offset;
  Wide highest = view.offset;
  for (std::size_t i = 0; i < view.dims.size(); ++i) {
    const Wide reach = static_cast<Wide>(view.dims[i] - 1) * view.strides[i];
    (reach < 0 ? lowest : highest) += reach;
  }
  check_range(view, lowest, highest, nbytes, what);
}

void check_dense(const View& view, std::size_t nbytes, const std::string& what) {
  check_shape(view, what);
  if (view.elements() == 0) return;
  const Wide last = static_cast<Wide>(view.offset) + view.elements() - 1;
  check_range(view, view.offset, last, nbytes, what);
}

}  // namespace npu
