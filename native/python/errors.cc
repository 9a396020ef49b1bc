// Python's exception types for the runtime's errors.
#include "core/errors.h"

#include <nanobind/nanobind.h>

#include "python/module.h"

namespace npu::python {
namespace {

struct ErrorTypes {
  PyObject* out_of_memory = nullptr;
  PyObject* unsupported = nullptr;
  PyObject* task = nullptr;
  PyObject* object = nullptr;
};

ErrorTypes types;

PyObject* add_type(nb::module_& m, const char* name, const char* doc, PyObject* base) {
  const std::string full = std::string("npu_runtime.") + name;
  PyObject* type = PyErr_NewExceptionWithDoc(full.c_str(), doc, base, nullptr);
  m.attr(name) = nb::handle(type);
  return type;
}

void raise_out_of_memory(const OutOfDeviceMemory& error) {
  nb::object exception = nb::handle(types.out_of_memory)(nb::str(error.what()));
  exception.attr("name") = nb::str(error.name().c_str());
  exception.attr("requested") = error.requested();
  exception.attr("available") = error.available();
  PyErr_SetObject(types.out_of_memory, exception.ptr());
}

void raise_task_error(const TaskError& error) {
  nb::object exception = nb::handle(types.task)(nb::str(error.what()));
  exception.attr("task") = nb::str(error.task().c_str());
  exception.attr("cause") = nb::str(error.cause().c_str());
  exception.attr("kind") = nb::str(error.kind().c_str());
  PyErr_SetObject(types.task, exception.ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const OutOfDeviceMemory& error) {
    raise_out_of_memory(error);
  } catch (const Unsupported& error) {
    PyErr_SetString(types.unsupported, error.what());
  } catch (const TaskError& error) {
    raise_task_error(error);
  } catch (const ObjectError& error) {
    PyErr_SetString(types.object, error.what());
  }
}

}  // namespace

void bind_errors(nb::module_& m) {
  types.out_of_memory =
      add_type(m, "OutOfDeviceMemory", "The device's memory limit would be exceeded.", PyExc_MemoryError);
  types.unsupported =
      add_type(m, "UnsupportedTask", "No implementation accepts what a task asks for.", PyExc_RuntimeError);
  types.task = add_type(m, "TaskError", "A task failed while running.", PyExc_RuntimeError);
  types.object = add_type(m, "ObjectError", "Kernel object bytes that cannot be loaded.", PyExc_ValueError);
  nb::register_exception_translator(translate);
}

}  // namespace npu::python
