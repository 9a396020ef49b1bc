// The extension module npu_runtime._native.
#include "python/module.h"

#include "core/processor.h"

NB_MODULE(_native, m) {
  using namespace npu::python;
  nb::set_leak_warnings(false);  // frameworks keep compiled programs alive until the interpreter ends
  m.doc() = "Native runtime: devices, programs, kernels.";
  npu::limit_instructions();
  bind_errors(m);
  bind_device(m);
  bind_program(m);
  bind_activity(m);
  bind_aicpu(m);
  bind_guests(m);
}
