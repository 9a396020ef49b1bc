// Conversion of views, attributes and buffers.
#include "python/convert.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "core/errors.h"
#include "core/object.h"

namespace npu::python {
namespace {

std::int64_t to_integer(nb::handle value) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  const long long result = PyLong_AsLongLong(index.ptr());
  if (result == -1 && PyErr_Occurred()) throw nb::python_error();
  return result;
}

double to_real(nb::handle value) {
  const double result = PyFloat_AsDouble(value.ptr());
  if (result == -1.0 && PyErr_Occurred()) throw nb::python_error();
  return result;
}

bool is_integer(nb::handle value) { return PyIndex_Check(value.ptr()); }

bool is_sequence(nb::handle value) { return PyList_Check(value.ptr()) || PyTuple_Check(value.ptr()); }

AttrValue to_list(const std::string& name, nb::handle sequence) {
  std::vector<std::int64_t> integers;
  std::vector<double> reals;
  std::vector<std::string> texts;
  std::size_t count = 0;
  for (nb::handle item : sequence) {
    ++count;
    if (PyUnicode_Check(item.ptr())) {
      texts.push_back(nb::cast<std::string>(item));
      continue;
    }
    if (is_integer(item)) integers.push_back(to_integer(item));
    reals.push_back(to_real(item));
  }
  if (texts.size() == count && count) return texts;
  if (integers.size() == count) return integers;
  if (reals.size() == count) return reals;
  throw InvalidArgument("attribute '" + name + "' mixes strings and numbers");
}

AttrValue to_attr(const std::string& name, nb::handle value) {
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
  if (PyUnicode_Check(value.ptr())) return nb::cast<std::string>(value);
  if (is_sequence(value)) return to_list(name, value);
  std::shared_ptr<KernelObject> kernel;
  if (nb::try_cast(value, kernel) && kernel) return kernel;
  if (is_integer(value)) return to_integer(value);
  if (PyNumber_Check(value.ptr())) return to_real(value);
  throw InvalidArgument("attribute '" + name + "' has a type that is not supported");
}

}  // namespace

Dims to_dims(nb::handle sequence) {
  Dims dims;
  for (nb::handle item : sequence) dims.push_back(to_integer(item));
  return dims;
}

View to_view(nb::handle tuple) {
  if (!is_sequence(tuple) || nb::len(tuple) != 5) {
    throw InvalidArgument("a view is (buffer, dtype, shape, strides, offset)");
  }
  View view;
  view.buffer = static_cast<int>(to_integer(tuple[0]));
  view.dtype = parse_dtype(nb::cast<std::string>(tuple[1]));
  view.dims = to_dims(tuple[2]);
  view.strides = to_dims(tuple[3]);
  view.offset = to_integer(tuple[4]);
  return view;
}

std::vector<View> to_views(nb::handle sequence) {
  std::vector<View> views;
  for (nb::handle item : sequence) {
    if (!item.is_none()) views.push_back(to_view(item));
  }
  return views;
}

Attrs to_attrs(const nb::dict& dict) {
  Attrs attrs;
  for (auto [key, value] : dict) {
    const auto name = nb::cast<std::string>(key);
    if (!value.is_none()) attrs.set(name, to_attr(name, value));
  }
  return attrs;
}

nb::tuple from_dims(const Dims& dims) {
  nb::list list;
  for (const std::int64_t dim : dims) list.append(dim);
  return nb::tuple(list);
}

HeldBuffer::HeldBuffer(nb::handle object, bool writable, const char* what, std::size_t index) {
  if (PyObject_GetBuffer(object.ptr(), &buffer_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0) return;
  PyErr_Clear();
  buffer_.obj = nullptr;
  throw InvalidArgument(std::string(what) + " " + std::to_string(index) + " is not a C-contiguous" +
                        (writable ? ", writable" : "") + " array");
}

}  // namespace npu::python
