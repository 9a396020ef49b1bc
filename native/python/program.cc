// Programs and kernel objects for Python.
#include "runtime/program.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/checksum.h"
#include "core/errors.h"
#include "core/object.h"
#include "python/convert.h"
#include "python/module.h"
#include "runtime/lowering.h"
#include "threads/guests.h"

namespace npu::python {
namespace {

using namespace nb::literals;

// The arrays of one call and their addresses; small calls stay on the stack.
class CallArrays {
 public:
  CallArrays(nb::handle arrays, std::size_t count, bool writable, const char* what) : what_(what) {
    const nb::object list = nb::steal(PySequence_Fast(arrays.ptr(), "a list of arrays is expected"));
    if (!list.is_valid()) throw nb::python_error();
    const bool is_list = PyList_Check(list.ptr());
    const auto given = static_cast<std::size_t>(is_list ? PyList_Size(list.ptr()) : PyTuple_Size(list.ptr()));
    if (given != count) {
      throw InvalidArgument(std::to_string(count) + " " + what + "s are needed, " + std::to_string(given) +
                            " given");
    }
    if (count > kInline) {
      more_buffers_.resize(count);
      more_addresses_.resize(count);
    }
    for (std::size_t i = 0; i < count; ++i) {
      HeldBuffer& buffer = count > kInline ? more_buffers_[i] : buffers_[i];
      const auto place = static_cast<Py_ssize_t>(i);
      PyObject* item = is_list ? PyList_GetItem(list.ptr(), place) : PyTuple_GetItem(list.ptr(), place);
      buffer = HeldBuffer(item, writable, what, i);
      addresses()[i] = buffer.data();
    }
  }

  void check_size(std::size_t i, std::size_t wanted) const {
    const HeldBuffer& buffer = more_buffers_.empty() ? buffers_[i] : more_buffers_[i];
    if (buffer.size() >= wanted) return;
    throw InvalidArgument(std::string(what_) + " " + std::to_string(i) + " holds " +
                          std::to_string(buffer.size()) + " bytes, " + std::to_string(wanted) +
                          " are needed");
  }

  void** addresses() { return more_addresses_.empty() ? addresses_ : more_addresses_.data(); }

 private:
  static constexpr std::size_t kInline = 8;
  const char* what_;
  HeldBuffer buffers_[kInline];
  void* addresses_[kInline] = {};
  std::vector<HeldBuffer> more_buffers_;
  std::vector<void*> more_addresses_;
};

CallArrays input_arrays(const Program& program, nb::handle arrays) {
  CallArrays held(arrays, program.input_count(), false, "input");
  for (std::size_t i = 0; i < program.input_count(); ++i) held.check_size(i, program.input_bytes(i));
  return held;
}

CallArrays output_arrays(const Program& program, nb::handle arrays) {
  CallArrays held(arrays, program.output_count(), true, "output");
  for (std::size_t i = 0; i < program.output_count(); ++i) held.check_size(i, program.output_bytes(i));
  return held;
}

nb::dict from_report(const ShapeReport& report) {
  nb::dict result;
  for (const auto& [output, dims] : report) result[nb::int_(output)] = from_dims(dims);
  return result;
}

nb::dict run(Program& program, nb::handle inputs, nb::handle outputs) {
  CallArrays in = input_arrays(program, inputs);
  CallArrays out = output_arrays(program, outputs);
  ShapeReport report;
  {
    const nb::gil_scoped_release unlocked;
    report = program.run(in.addresses(), out.addresses(), Device::selected());
  }
  return from_report(report);
}

std::vector<void*> to_addresses(const std::vector<std::uintptr_t>& numbers, std::size_t wanted,
                                const char* what) {
  if (numbers.size() != wanted) {
    throw InvalidArgument(std::to_string(wanted) + " " + what + " addresses are needed, " +
                          std::to_string(numbers.size()) + " given");
  }
  std::vector<void*> addresses;
  for (const std::uintptr_t number : numbers) addresses.push_back(reinterpret_cast<void*>(number));
  return addresses;
}

nb::dict run_pointers(Program& program, const std::vector<std::uintptr_t>& inputs,
                      const std::vector<std::uintptr_t>& outputs, bool guests) {
  const auto in = to_addresses(inputs, program.input_count(), "input");
  const auto out = to_addresses(outputs, program.output_count(), "output");
  ShapeReport report;
  Device* const where = Device::selected();
  const auto call = [&] { report = program.run(in.data(), out.data(), where); };
  {
    const nb::gil_scoped_release unlocked;
    guests ? run_with_guests(call) : call();
  }
  return from_report(report);
}

std::vector<double> profile(Program& program, nb::handle inputs, nb::handle outputs, int repeats) {
  CallArrays in = input_arrays(program, inputs);
  CallArrays out = output_arrays(program, outputs);
  const nb::gil_scoped_release unlocked;
  return program.profile(in.addresses(), out.addresses(), repeats);
}

// Borrows a Python object's memory while it is read.
ConstantSource to_source(nb::handle array, bool copy, std::size_t* bytes) {
  auto held = std::make_unique<HeldBuffer>(array, false, "constant", 0);
  *bytes = held->size();
  void* data = held->data();
  std::shared_ptr<void> owner(held.release(), [](void* pointer) {
    const nb::gil_scoped_acquire locked;
    delete static_cast<HeldBuffer*>(pointer);
  });
  return {data, std::move(owner), copy};
}

int add_constant(Program& program, nb::handle array, bool copy) {
  std::size_t bytes = 0;
  ConstantSource source = to_source(array, copy, &bytes);
  return program.constant(std::move(source), bytes);
}

void finalize(Program& program, std::size_t arena_bytes, nb::handle image, const std::string& layout) {
  std::size_t bytes = 0;
  ConstantSource source = image.is_none() ? ConstantSource{} : to_source(image, false, &bytes);
  const nb::gil_scoped_release unlocked;
  program.finalize(arena_bytes, std::move(source), bytes, layout);
}

nb::object constant_image(nb::object self) {
  const auto& program = nb::cast<const Program&>(self);
  const std::size_t bytes = program.image_bytes();
  return nb::cast(
      nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>(program.constant_image(), {bytes}, self));
}

nb::bytes chunk_sums_of(nb::handle object) {
  const HeldBuffer buffer(object, false, "data", 0);
  std::vector<ChunkSum> sums;
  {
    const nb::gil_scoped_release unlocked;
    sums = chunk_sums(buffer.data(), buffer.size());
  }
  return nb::bytes(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(ChunkSum));
}

nb::list task_info(const Program& program) {
  nb::list result;
  for (const TaskInfo& info : program.task_info()) {
    nb::dict entry;
    entry["name"] = info.name;
    entry["kind"] = info.kind;
    entry["impl"] = info.impl;
    entry["layout"] = info.layout;
    entry["flops"] = info.flops;
    entry["bytes"] = info.bytes;
    result.append(entry);
  }
  return result;
}

TaskDef to_task(std::string kind, std::string name, nb::handle inputs, nb::handle outputs,
                const nb::dict& attrs, int block) {
  return {std::move(kind), std::move(name), to_views(inputs), to_views(outputs), to_attrs(attrs), block};
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<KernelObject>(m, "KernelHandle", "Loaded code of one generated kernel.")
      .def_prop_ro("symbol", &KernelObject::symbol)
      .def_prop_ro("nbytes", &KernelObject::mapped_bytes)
      .def_prop_ro("address",
                   [](const KernelObject& self) { return reinterpret_cast<std::uintptr_t>(self.entry()); });
  m.def(
      "load_object",
      [](nb::bytes object, const std::string& symbol) {
        const auto* data = static_cast<const std::byte*>(object.data());
        return KernelObject::load({data, object.size()}, symbol);
      },
      "object"_a, "symbol"_a, "Loads an x86-64 ELF object; raises ObjectError for anything malformed.");
  m.def("chunk_sums", &chunk_sums_of, "data"_a,
        "32 bytes for each MiB of a buffer, different where it differs.");

  nb::class_<Program>(m, "Program", "Tasks over buffers; immutable and thread-safe once finalized.")
      .def(nb::init<std::string, int>(), "name"_a, "device"_a = 0)
      .def("input", &Program::input, "index"_a, "nbytes"_a)
      .def("output", &Program::output, "index"_a, "nbytes"_a, "over"_a = Buffer::kAnyInput,
           "over: the input whose memory the caller may give for it; -1 for none, -2 for any.")
      .def("arena", &Program::arena, "offset"_a, "nbytes"_a)
      .def("constant", &add_constant, "array"_a, "copy"_a = true,
           "Contents are read at finalize(); copy=False lets tasks read the array itself for good.")
      .def("block", &Program::block)
      .def(
          "task",
          [](Program& self, std::string kind, std::string name, nb::handle inputs, nb::handle outputs,
             const nb::dict& attrs, int block) {
            self.task(to_task(std::move(kind), std::move(name), inputs, outputs, attrs, block));
          },
          "kind"_a, "name"_a, "inputs"_a, "outputs"_a, "attrs"_a, "block"_a = 0)
      .def("repeat", &Program::repeat, "times"_a, "input_steps"_a, "output_steps"_a,
           "Run the tasks several times a call, inputs and outputs advancing by these bytes each time.")
      .def(
          "set_loops",
          [](Program& self, std::int64_t l1, std::int64_t l2, std::int64_t last, double wake_ns) {
            self.set_loops({l1, l2, last, wake_ns});
          },
          "l1_bytes"_a = Loops{}.l1_bytes, "l2_bytes"_a = Loops{}.l2_bytes,
          "last_bytes"_a = Loops{}.last_bytes, "wake_ns"_a = Loops{}.wake_ns,
          "The caches and the price of a thread that it was compiled for; those of this processor unless "
          "told.")
      .def("finalize", &finalize, "arena_bytes"_a, "image"_a = nb::none(), "layout"_a = "",
           "Makes primitives and packs constants; or takes the packed constants of an equal program, by "
           "their image "
           "and its layout.")
      .def_prop_ro("constant_image", &constant_image, "What finalize() has made of the constants.")
      .def_prop_ro("image_layout", &Program::image_layout)
      .def_prop_ro("plain_constants", &Program::plain_constants, "The constants that are read as they are.")
      .def("run", &run, "inputs"_a, "outputs"_a)
      .def("run_pointers", &run_pointers, "inputs"_a, "outputs"_a, "guests"_a = false,
           "guests: the threads of take_guests_of() do the work of the pool's.")
      .def("profile", &profile, "inputs"_a, "outputs"_a, "repeats"_a = 1)
      .def("task_info", &task_info)
      .def_prop_ro("name", &Program::name)
      .def_prop_ro("number", &Program::number, "Its number in recordings.")
      .def_prop_ro("arena_bytes", &Program::arena_bytes)
      .def_prop_ro("scratch_bytes", &Program::scratch_bytes)
      .def_prop_ro("constant_bytes", &Program::constant_bytes);
}

}  // namespace npu::python
