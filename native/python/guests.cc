// Other libraries in the process: the device in their DLPack capsules written anew, their memory fetched
// before it is read, their OpenMP threads at work for programs.
#include "threads/guests.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "python/module.h"

namespace npu::python {
namespace {

using namespace nb::literals;

// The head of what a DLPack capsule points to: the address of the data, then the type and index of its
// device.
struct DlpackHead {
  void* data;
  std::int32_t device_type;
  std::int32_t device_index;
};

void set_device(nb::handle capsule, std::int32_t device_type, std::int32_t device_index) {
  auto* head = static_cast<DlpackHead*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (head == nullptr) throw nb::python_error();
  head->device_type = device_type;
  head->device_index = device_index;
}

// Addresses that are about to be read one after the other. They are only hints: nothing need be there any
// more.
class Fetcher {
 public:
  explicit Fetcher(std::vector<std::uintptr_t> addresses) : addresses_(std::move(addresses)) {}

  void fetch() const {
    for (const std::uintptr_t address : addresses_) {
      __builtin_prefetch(reinterpret_cast<const void*>(address));
    }
  }

 private:
  std::vector<std::uintptr_t> addresses_;
};

}  // namespace

void bind_guests(nb::module_& m) {
  m.def("set_dlpack_device", &set_device, "capsule"_a, "device_type"_a, "device_index"_a = 0,
        "Writes the type and index of the device into a DLPack capsule that nobody has taken yet.");
  m.def("take_guests_of", &take_guests_of, "library"_a,
        "Lets the OpenMP threads that a loaded library uses work for programs, where a call asks for it.");
  nb::class_<Fetcher>(m, "Fetcher", "Memory that is about to be read, fetched all at once; a hint.")
      .def(nb::init<std::vector<std::uintptr_t>>(), "addresses"_a)
      .def("__call__", &Fetcher::fetch);
}

}  // namespace npu::python
