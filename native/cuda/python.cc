// The extension module npu_runtime._cuda.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/errors.h"
#include "cuda/attention.h"
#include "cuda/convolution.h"
#include "cuda/device.h"
#include "cuda/product.h"
#include "cuda/tensor_memory.h"

namespace nb = nanobind;
using namespace npu::cuda;

namespace {

nb::object error_types;  // npu_runtime._native: both modules raise the same exceptions

void raise_out_of_memory(const npu::OutOfDeviceMemory& error) {
  nb::object type = error_types.attr("OutOfDeviceMemory");
  nb::object exception = type(nb::str(error.what()));
  exception.attr("name") = nb::str(error.name().c_str());
  exception.attr("requested") = error.requested();
  exception.attr("available") = error.available();
  PyErr_SetObject(type.ptr(), exception.ptr());
}

PyObject* unavailable_type = nullptr;
PyObject* error_type = nullptr;

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const npu::OutOfDeviceMemory& error) {
    raise_out_of_memory(error);
  } catch (const npu::Unsupported& error) {
    PyErr_SetString(nb::object(error_types.attr("UnsupportedTask")).ptr(), error.what());
  } catch (const Unavailable& error) {
    PyErr_SetString(unavailable_type, error.what());
  } catch (const CudaError& error) {
    PyErr_SetString(error_type, error.what());
  }
}

PyObject* add_type(nb::module_& m, const char* name, const char* doc) {
  const std::string full = std::string("npu_runtime.cuda.") + name;
  PyObject* type = PyErr_NewExceptionWithDoc(full.c_str(), doc, PyExc_RuntimeError, nullptr);
  m.attr(name) = nb::handle(type);
  return type;
}

// A contiguous buffer of the host, held while it is used.
class HostBuffer {
 public:
  HostBuffer(nb::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) != 0) {
      throw nb::python_error();
    }
  }
  ~HostBuffer() { PyBuffer_Release(&view_); }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  void* data() const { return view_.buf; }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }

 private:
  Py_buffer view_;
};

void check_size(std::size_t bytes, std::size_t offset, const Memory& memory) {
  if (offset > memory.size() || bytes > memory.size() - offset) {
    throw npu::InvalidArgument("a copy of " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                               " exceeds the " + std::to_string(memory.size()) + " bytes of the memory");
  }
}

void bind_memory(nb::module_& m) {
  nb::class_<Memory>(m, "Memory", "Memory of a GPU.")
      .def(
          "__init__",
          [](Memory* self, int device, std::size_t bytes, const std::string& name) {
            new (self) Memory(Device::get(device), bytes, name);
          },
          nb::arg("device"), nb::arg("bytes"), nb::arg("name") = "")
      .def_prop_ro("address", &Memory::address)
      .def_prop_ro("size", &Memory::size)
      .def(
          "upload",
          [](const Memory& self, const Stream& stream, nb::handle array, std::size_t offset) {
            const HostBuffer source(array, false);
            check_size(source.size(), offset, self);
            if (source.size() == 0) return;
            nb::gil_scoped_release released;
            stream.upload(self.address() + offset, source.data(), source.size());
            stream.synchronize();
          },
          nb::arg("stream"), nb::arg("array"), nb::arg("offset") = 0)
      .def(
          "download",
          [](const Memory& self, const Stream& stream, nb::handle array, std::size_t offset) {
            const HostBuffer target(array, true);
            check_size(target.size(), offset, self);
            if (target.size() == 0) return;
            nb::gil_scoped_release released;
            stream.download(target.data(), self.address() + offset, target.size());
            stream.synchronize();
          },
          nb::arg("stream"), nb::arg("array"), nb::arg("offset") = 0);
  nb::class_<PinnedMemory>(m, "PinnedMemory", "Memory of the host that copies do not wait for.")
      .def(
          "__init__",
          [](PinnedMemory* self, int device, std::size_t bytes) {
            new (self) PinnedMemory(Device::get(device), bytes);
          },
          nb::arg("device"), nb::arg("bytes"))
      .def_prop_ro("address",
                   [](const PinnedMemory& self) { return reinterpret_cast<std::uintptr_t>(self.data()); })
      .def_prop_ro("size", &PinnedMemory::size);
}

StreamHandle stream_handle(std::uintptr_t address) { return reinterpret_cast<StreamHandle>(address); }

void* host_pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

void bind_streams(nb::module_& m) {
  nb::class_<Stream>(m, "Stream", "An ordered queue of work of a GPU.")
      .def(
          "__init__", [](Stream* self, int device) { new (self) Stream(Device::get(device)); },
          nb::arg("device"))
      .def_static(
          "borrowed",
          [](int device, std::uintptr_t handle) {
            return std::make_shared<Stream>(Device::get(device), stream_handle(handle));
          },
          nb::arg("device"), nb::arg("handle"),
          "A stream that somebody else owns, such as PyTorch's current one; 0 is the default stream.")
      .def_prop_ro("handle",
                   [](const Stream& self) { return reinterpret_cast<std::uintptr_t>(self.handle()); })
      .def_prop_ro("device", [](const Stream& self) { return self.device().index(); })
      .def_prop_ro("idle", &Stream::idle)
      .def("synchronize", &Stream::synchronize, nb::call_guard<nb::gil_scoped_release>())
      .def("wait", &Stream::wait, nb::arg("event"), "Lets what follows wait for an event.")
      .def(
          "launch",
          [](const Stream& self, const Module& module, const std::string& symbol, unsigned blocks,
             unsigned threads, const std::vector<Address>& arguments,
             unsigned shared) { launch(self, module.function(symbol), blocks, threads, arguments, shared); },
          nb::arg("module"), nb::arg("symbol"), nb::arg("blocks"), nb::arg("threads"), nb::arg("arguments"),
          nb::arg("shared") = 0)
      .def(
          "copy",
          [](const Stream& self, Address to, Address from, std::size_t bytes) {
            self.device().use();
            check(self.device().driver().copy_on_device(to, from, bytes, self.handle()), "cuMemcpyDtoDAsync");
          },
          nb::arg("to"), nb::arg("source"), nb::arg("bytes"))
      .def("copy_anywhere", &Stream::copy, nb::arg("to"), nb::arg("source"), nb::arg("bytes"),
           "Copies between memories of any GPUs.")
      .def(
          "upload",
          [](const Stream& self, Address to, std::uintptr_t source, std::size_t bytes) {
            self.upload(to, host_pointer(source), bytes);
          },
          nb::arg("to"), nb::arg("source"), nb::arg("bytes"), nb::call_guard<nb::gil_scoped_release>(),
          "Copies from an address of the host, which stays as it is until the stream has passed.")
      .def(
          "download",
          [](const Stream& self, std::uintptr_t to, Address source, std::size_t bytes) {
            self.download(host_pointer(to), source, bytes);
          },
          nb::arg("to"), nb::arg("source"), nb::arg("bytes"), nb::call_guard<nb::gil_scoped_release>(),
          "Copies to an address of the host, which is filled when the stream has passed.")
      .def(
          "fill",
          [](const Stream& self, Address to, int byte, std::size_t bytes) {
            self.device().use();
            check(self.device().driver().fill(to, static_cast<unsigned char>(byte), bytes, self.handle()),
                  "cuMemsetD8Async");
          },
          nb::arg("to"), nb::arg("byte"), nb::arg("bytes"))
      .def("begin_capture", [](const Stream& self) { Graph::begin(self); });
  nb::class_<Event>(m, "Event", "A point in a stream, with the time it was reached.")
      .def(
          "__init__", [](Event* self, int device) { new (self) Event(Device::get(device)); },
          nb::arg("device"))
      .def("record", &Event::record, nb::arg("stream"))
      .def("synchronize", &Event::synchronize, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("complete", &Event::complete)
      .def("milliseconds_since", &Event::milliseconds_since, nb::arg("begin"));
  nb::class_<Module>(m, "Module", "Loaded machine code.")
      .def(
          "__init__",
          [](Module* self, int device, nb::bytes image) {
            const std::string text(image.c_str(), image.size());
            nb::gil_scoped_release released;
            new (self) Module(Device::get(device), text);
          },
          nb::arg("device"), nb::arg("image"));
  nb::class_<Graph>(m, "Graph", "Captured work, launched as one.")
      .def(
          "__init__", [](Graph* self, const Stream& stream) { new (self) Graph(stream); }, nb::arg("stream"))
      .def_prop_ro("nodes", &Graph::nodes)
      .def("launch", &Graph::launch, nb::arg("stream"), nb::call_guard<nb::gil_scoped_release>());
}

Matrix matrix_of(const std::vector<std::int64_t>& m) { return {m.at(0), m.at(1), m.at(2), m.at(3), m.at(4)}; }

void bind_libraries(nb::module_& m) {
  nb::class_<Product>(m, "Product",
                      "A matrix product of cuBLASLt; a matrix is (rows, columns, strides, stack stride).")
      .def(
          "__init__",
          [](Product* self, int device, const std::string& library, const std::string& dtype,
             const std::string& result, std::int64_t stack, const std::vector<std::int64_t>& a,
             const std::vector<std::int64_t>& b, const std::vector<std::int64_t>& y,
             const std::vector<std::int64_t>& residual, bool has_bias, const std::string& activation) {
            ProductSpec spec{library,      dtype,        result, stack,    matrix_of(a),
                             matrix_of(b), matrix_of(y), {},     has_bias, !residual.empty(),
                             activation};
            if (spec.has_residual) spec.residual = matrix_of(residual);
            new (self) Product(Device::get(device), spec);
          },
          nb::arg("device"), nb::arg("library"), nb::arg("dtype"), nb::arg("result"), nb::arg("stack"),
          nb::arg("a"), nb::arg("b"), nb::arg("y"), nb::arg("residual"), nb::arg("has_bias"),
          nb::arg("activation"))
      .def_prop_ro("candidates", &Product::candidates)
      .def("describe", &Product::describe, nb::arg("candidate"))
      .def(
          "prepare", [](const Product&, std::size_t) { return Product::kWorkspace; }, nb::arg("candidate"))
      .def("enqueue", &Product::enqueue, nb::arg("stream"), nb::arg("candidate"), nb::arg("a"), nb::arg("b"),
           nb::arg("bias"), nb::arg("residual"), nb::arg("y"), nb::arg("workspace"));
  nb::class_<Convolution>(
      m, "Convolution", "A convolution of cuDNN with bias, residual and activation, or one of its gradients.")
      .def(
          "__init__",
          [](Convolution* self, int device, const std::string& library, const std::string& direction,
             const std::string& dtype, const std::string& result, const Dims& x, const Dims& x_strides,
             const Dims& w, const Dims& w_strides, const Dims& y, const Dims& y_strides, const Dims& strides,
             const Dims& dilations, const Dims& pads_begin, const Dims& pads_end, bool has_bias,
             bool has_residual, const std::string& activation) {
            const ConvolutionSpec spec{library,    direction_of(direction),
                                       dtype,      result,
                                       x,          x_strides,
                                       w,          w_strides,
                                       y,          y_strides,
                                       strides,    dilations,
                                       pads_begin, pads_end,
                                       has_bias,   has_residual,
                                       activation};
            new (self) Convolution(Device::get(device), spec);
          },
          nb::arg("device"), nb::arg("library"), nb::arg("direction"), nb::arg("dtype"), nb::arg("result"),
          nb::arg("x"), nb::arg("x_strides"), nb::arg("w"), nb::arg("w_strides"), nb::arg("y"),
          nb::arg("y_strides"), nb::arg("strides"), nb::arg("dilations"), nb::arg("pads_begin"),
          nb::arg("pads_end"), nb::arg("has_bias"), nb::arg("has_residual"), nb::arg("activation"))
      .def_prop_ro("candidates", &Convolution::candidates)
      .def("describe", &Convolution::describe, nb::arg("candidate"))
      .def("prepare", &Convolution::prepare, nb::arg("candidate"), nb::call_guard<nb::gil_scoped_release>())
      .def("enqueue", &Convolution::enqueue, nb::arg("stream"), nb::arg("candidate"), nb::arg("a"),
           nb::arg("b"), nb::arg("bias"), nb::arg("residual"), nb::arg("y"), nb::arg("workspace"));
  nb::class_<Attention>(m, "Attention", "Attention of cuDNN, with a mask that is added to the scores.")
      .def(
          "__init__",
          [](Attention* self, int device, const std::string& library, const std::string& dtype, const Dims& q,
             const Dims& q_strides, const Dims& k, const Dims& k_strides, const Dims& v,
             const Dims& v_strides, const Dims& y, const Dims& y_strides, const std::string& mask_dtype,
             const Dims& mask, const Dims& mask_strides, double scale, bool causal, bool has_sums) {
            const AttentionSpec spec{library,   dtype,   q,         q_strides,  k,    k_strides,    v,
                                     v_strides, y,       y_strides, mask_dtype, mask, mask_strides, scale,
                                     causal,    has_sums};
            new (self) Attention(Device::get(device), spec);
          },
          nb::arg("device"), nb::arg("library"), nb::arg("dtype"), nb::arg("q"), nb::arg("q_strides"),
          nb::arg("k"), nb::arg("k_strides"), nb::arg("v"), nb::arg("v_strides"), nb::arg("y"),
          nb::arg("y_strides"), nb::arg("mask_dtype"), nb::arg("mask"), nb::arg("mask_strides"),
          nb::arg("scale"), nb::arg("causal"), nb::arg("has_sums"))
      .def_prop_ro("candidates", &Attention::candidates)
      .def("describe", &Attention::describe, nb::arg("candidate"))
      .def("prepare", &Attention::prepare, nb::arg("candidate"), nb::call_guard<nb::gil_scoped_release>())
      .def("enqueue", &Attention::enqueue, nb::arg("stream"), nb::arg("candidate"), nb::arg("q"),
           nb::arg("k"), nb::arg("v"), nb::arg("mask"), nb::arg("y"), nb::arg("sums"), nb::arg("workspace"));
}

// A tensor of somebody else, held.
struct Tensor {
  nb::ndarray<> array;
};

void bind_tensors(nb::module_& m) {
  nb::class_<Tensor>(m, "Tensor", "A tensor of somebody else, taken from a DLPack capsule and held.")
      .def(
          "__init__", [](Tensor* self, nb::ndarray<> array) { new (self) Tensor{std::move(array)}; },
          nb::arg("capsule"))
      .def_prop_ro("device_type", [](const Tensor& self) { return self.array.device_type(); })
      .def_prop_ro("device", [](const Tensor& self) { return self.array.device_id(); })
      .def_prop_ro("address",
                   [](const Tensor& self) { return reinterpret_cast<std::uintptr_t>(self.array.data()); })
      .def_prop_ro("shape",
                   [](const Tensor& self) {
                     std::vector<std::size_t> dims;
                     for (std::size_t i = 0; i < self.array.ndim(); ++i) dims.push_back(self.array.shape(i));
                     return dims;
                   })
      .def_prop_ro("strides",
                   [](const Tensor& self) {
                     std::vector<std::int64_t> strides;
                     for (std::size_t i = 0; i < self.array.ndim(); ++i)
                       strides.push_back(self.array.stride(i));
                     return strides;
                   })
      .def_prop_ro("type", [](const Tensor& self) {
        const nb::dlpack::dtype type = self.array.dtype();
        return nb::make_tuple(static_cast<int>(type.code), static_cast<int>(type.bits));
      });
  m.def(
      "to_dlpack",
      [](nb::object owner, int device_type, int device, std::uintptr_t address,
         const std::vector<std::size_t>& shape, int code, int bits) {
        const nb::dlpack::dtype type{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
        return nb::ndarray<>(host_pointer(address), shape.size(), shape.data(), owner, nullptr, type,
                             device_type, device);
      },
      nb::arg("owner"), nb::arg("device_type"), nb::arg("device"), nb::arg("address"), nb::arg("shape"),
      nb::arg("code"), nb::arg("bits"), "A DLPack capsule of dense memory that `owner` keeps.");
}

void bind_tensor_memory(nb::module_& m) {
  m.def(
      "gpu_calls",
      [] {
        return nb::steal(
            PyCapsule_New(const_cast<npu::GpuCalls*>(&gpu_calls()), npu::GpuCalls::kName, nullptr));
      },
      "What npu_runtime._native asks of GPUs for tensors.");
  m.def(
      "tensor_stream",
      [](int device) { return reinterpret_cast<std::uintptr_t>(TensorMemory::of(device).stream().handle()); },
      nb::arg("device"), "The stream that orders the memory of tensors on a GPU.");
}

nb::dict describe(int index) {
  Device& device = Device::get(index);
  nb::dict info;
  info["name"] = device.name();
  info["architecture"] = device.architecture();
  info["multiprocessors"] = device.attribute(kMultiprocessorCount);
  info["cache_bytes"] = device.attribute(kCacheBytes);
  return info;
}

nb::dict memory_info(int index) {
  const Usage usage = Device::get(index).usage();
  nb::dict info;
  info["current"] = usage.current;
  info["peak"] = usage.peak;
  info["pooled"] = usage.pooled;
  info["limit"] = usage.limit;
  info["free"] = usage.free;
  info["total"] = usage.total;
  return info;
}

}  // namespace

NB_MODULE(_cuda, m) {
  nb::set_leak_warnings(false);
  m.doc() = "NVIDIA GPUs over the driver found at run time.";
  error_types = nb::module_::import_("npu_runtime._native");
  error_types.inc_ref();  // outlives the interpreter's modules
  unavailable_type = add_type(m, "CudaUnavailable", "This machine has no CUDA driver or no GPU.");
  error_type = add_type(m, "CudaError", "A call of the CUDA driver or of one of its libraries failed.");
  nb::register_exception_translator(translate);
  m.def("device_count", &Device::count, "GPUs of this machine; raises CudaUnavailable without a driver.");
  m.def("describe", &describe, nb::arg("device"), "Name, architecture and size of a GPU.");
  m.def("memory_info", &memory_info, nb::arg("device"),
        "Bytes in use, at most in use, pooled, free and in total.");
  m.def(
      "set_memory_limit", [](int device, std::size_t bytes) { Device::get(device).set_limit(bytes); },
      nb::arg("device"), nb::arg("bytes"), "Bytes that may be in use at once; 0 for all.");
  m.def(
      "trim", [](int device) { Device::get(device).trim(); }, nb::arg("device"), "Gives pooled memory back.");
  m.def(
      "synchronize", [](int device) { Device::get(device).synchronize(); }, nb::arg("device"),
      nb::call_guard<nb::gil_scoped_release>(), "Waits for everything that a GPU has to do.");
  m.def("is_simulated", &is_simulated, "Whether the driver is the simulation on the host.");
  bind_memory(m);
  bind_streams(m);
  bind_libraries(m);
  bind_tensors(m);
  bind_tensor_memory(m);
}
