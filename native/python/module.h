// The parts of the Python module, one function each.
#pragma once

#include <nanobind/nanobind.h>

namespace npu::python {

namespace nb = nanobind;

void bind_errors(nb::module_& m);
void bind_device(nb::module_& m);
void bind_program(nb::module_& m);
void bind_activity(nb::module_& m);
void bind_aicpu(nb::module_& m);
void bind_guests(nb::module_& m);

}  // namespace npu::python
