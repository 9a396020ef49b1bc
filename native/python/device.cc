// Devices, memory and versions for Python.
#include "core/device.h"

#include <malloc.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/errors.h"
#include "core/loops.h"
#include "python/module.h"
#include "runtime/library.h"
#include "threads/processors.h"
#if NPU_ONEDNN
#include "onednn/primitive.h"
#endif

namespace npu::python {
namespace {

using namespace nb::literals;

#if NPU_ONEDNN
const char* isa_name() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41:
      return "sse41";
    case dnnl::cpu_isa::avx:
      return "avx";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2_vnni";
    case dnnl::cpu_isa::avx2_vnni_2:
      return "avx2_vnni_2";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_fp16:
      return "avx512_core_fp16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    case dnnl::cpu_isa::avx512_core_amx_fp16:
      return "avx512_core_amx_fp16";
    default:
      return "unknown";
  }
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

#else
const char* isa_name() {
#if defined(__aarch64__)
  return "neon";
#else
  return "sse41";
#endif
}

std::string onednn_version() { return ""; }

std::int64_t nan_repairs() { return 0; }
#endif

nb::dict version() {
  nb::dict result;
  result["onednn"] = onednn_version();
  result["isa"] = isa_name();
  return result;
}

nb::dict memory_info(int device) {
  const MemoryInfo info = Device::get(device).memory();
  nb::dict result;
  result["current"] = info.current;
  result["peak"] = info.peak;
  result["limit"] = info.limit;
  result["constants"] = info.constants;
  result["arenas"] = info.arenas;
  result["buffers"] = info.buffers;
  return result;
}

}  // namespace

void bind_device(nb::module_& m) {
  m.def("version", &version, "Versions of what the runtime is made of, and the instruction set in use.");
  m.def("device_count", &Device::count);
  m.def(
      "selected_device", [] { return Device::selected() ? Device::selected()->index() : -1; },
      "The device that this thread has selected, -1 for none.");
  m.def("select_device", &Device::select, "device"_a,
        "The device of programs that this thread runs from now on, -1 for their own; returns the last one.");
  m.def("processors", &processors, "groups"_a = "/proc/self/cgroup", "root"_a = "/sys/fs/cgroup",
        "Cores that this process may use: by its affinity and by the quotas of its control groups.");
  m.def("parse_cores", &parse_cores, "text"_a,
        "The cores of each device from a text such as 0-3;4-7; empty where it is none.");
  m.def("memory_nodes", &memory_nodes, "root"_a = "/sys/devices/system/node",
        "The cores that this process may use of each memory (NUMA) node.");
  m.def("cores_by_node", &cores_by_node, "count"_a, "nodes"_a,
        "The cores of devices that no node boundary divides; empty where nodes do not matter.");
  m.def("node_of", &node_of, "cores"_a, "nodes"_a, "The node that has all of some cores, -1 for none.");
  m.def(
      "parse_devices", &parse_devices, "text"_a, "count"_a,
      "The numbers of a text such as 0,2 if each is below the count and there once; empty for other texts.");
  m.def("nan_repairs", &nan_repairs,
        "Products that ran again because their epilogue met NaN, in this process so far");
  m.def(
      "caches",
      [] {
        const Loops& here = host_loops();
        return nb::make_tuple(here.l1_bytes, here.l2_bytes, here.last_bytes);
      },
      "Bytes of a core's data cache, of its second level, of the last level.");
  m.def("num_threads", [](int device) { return Device::get(device).threads(); }, "device"_a = 0);
  m.def(
      "set_num_threads", [](int threads, int device) { Device::get(device).set_threads(threads); },
      "threads"_a, "device"_a = 0, "Threads of programs finalized from now on.");
  m.def("memory_info", &memory_info, "device"_a = 0);
  m.def(
      "set_memory_limit", [](std::size_t bytes, int device) { Device::get(device).set_limit(bytes); },
      "bytes"_a, "device"_a = 0, "The most a device may hold; 0 restores the machine's memory size.");
  m.def("reset_peak", [](int device) { Device::get(device).reset_peak(); }, "device"_a = 0);
  m.def(
      "trim", [](int device) { Device::get(device).arenas().trim(); }, "device"_a = 0, "Frees idle arenas.");
  m.def(
      "reclaim", [] { malloc_trim(0); }, nb::call_guard<nb::gil_scoped_release>(),
      "Returns the free memory of the heap to the system.");

  nb::class_<DeviceMemory>(m, "DeviceBuffer", "A block of device memory, freed with its last reference.")
      .def(
          "__init__",
          [](DeviceMemory* self, std::size_t nbytes, const std::string& name, int device) {
            new (self) DeviceMemory(Device::get(device), MemoryUse::Buffers, nbytes, name);
          },
          "nbytes"_a, "name"_a = "a buffer", "device"_a = 0)
      .def_prop_ro("address",
                   [](const DeviceMemory& self) { return reinterpret_cast<std::uintptr_t>(self.data()); })
      .def_prop_ro("nbytes", &DeviceMemory::size);
}

}  // namespace npu::python
