// From Python values to the runtime's own.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>
#include <vector>

#include "core/attrs.h"
#include "core/view.h"

namespace npu::python {

namespace nb = nanobind;

Dims to_dims(nb::handle sequence);
View to_view(nb::handle tuple);
// None entries are left out.
std::vector<View> to_views(nb::handle sequence);
Attrs to_attrs(const nb::dict& dict);
nb::tuple from_dims(const Dims& dims);

// A C-contiguous buffer of a Python object, held for the lifetime of this object.
class HeldBuffer {
 public:
  HeldBuffer() = default;
  HeldBuffer(nb::handle object, bool writable, const char* what, std::size_t index);
  ~HeldBuffer() {
    if (buffer_.obj) PyBuffer_Release(&buffer_);
  }
  HeldBuffer(HeldBuffer&& other) noexcept : buffer_(other.buffer_) { other.buffer_.obj = nullptr; }
  HeldBuffer& operator=(HeldBuffer&& other) noexcept {
    std::swap(buffer_, other.buffer_);
    return *this;
  }

  void* data() const { return buffer_.buf; }
  std::size_t size() const { return static_cast<std::size_t>(buffer_.len); }

 private:
  Py_buffer buffer_{};
};

}  // namespace npu::python
