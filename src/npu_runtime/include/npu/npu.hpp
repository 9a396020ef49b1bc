// C++ over npu/npu.h: handles that free themselves, tensors, exceptions. C++20, header only.
//
//     tf_adapter::Model model("resnet50.om");
//     tf_adapter::Tensor image(model.inputs()[0]);
//     fill(image.values<float>());
//     std::vector<tf_adapter::Tensor> results = model({&image, 1});
#ifndef NPU_NPU_HPP_
#define NPU_NPU_HPP_

#include <npu/npu.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tf_adapter {

using Dims = std::vector<std::int64_t>;

// A failed call; `status()` is the number of the engine's code, 11003 for E11003.
class Error : public std::runtime_error {
 public:
  Error(npu_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  npu_status status() const { return status_; }

 private:
  npu_status status_;
};

inline void check(npu_status status) {
  if (status != NPU_OK) throw Error(status, npu_last_error());
}

// The element type of a C++ type; std::uint16_t is taken for float16 and bfloat16, too (see Tensor::values).
template <class T>
constexpr npu_dtype dtype_of() {
  if constexpr (std::is_same_v<T, float>) return NPU_FLOAT32;
  if constexpr (std::is_same_v<T, double>) return NPU_FLOAT64;
  if constexpr (std::is_same_v<T, bool>) return NPU_BOOL;
  if constexpr (std::is_same_v<T, std::int8_t>) return NPU_INT8;
  if constexpr (std::is_same_v<T, std::int16_t>) return NPU_INT16;
  if constexpr (std::is_same_v<T, std::int32_t>) return NPU_INT32;
  if constexpr (std::is_same_v<T, std::int64_t>) return NPU_INT64;
  if constexpr (std::is_same_v<T, std::uint8_t>) return NPU_UINT8;
  if constexpr (std::is_same_v<T, std::uint16_t>) return NPU_UINT16;
  if constexpr (std::is_same_v<T, std::uint32_t>) return NPU_UINT32;
  if constexpr (std::is_same_v<T, std::uint64_t>) return NPU_UINT64;
}

// An input or output of a model.
struct TensorInfo {
  std::string name;
  npu_dtype dtype = NPU_FLOAT32;
  Dims dims;
  std::string format;
  std::size_t bytes = 0;
  bool dynamic = false;  // only a run decides the shape, and `dims` are the largest
};

// An array that owns its memory, which is aligned for vectors.
class Tensor {
 public:
  Tensor(npu_dtype dtype, Dims dims)
      : dtype_(dtype),
        dims_(std::move(dims)),
        bytes_(count(dims_) * npu_dtype_bytes(dtype)),
        data_(allocate(bytes_)) {}
  explicit Tensor(const TensorInfo& info) : Tensor(info.dtype, info.dims) {}
  template <class T>
  Tensor(Dims dims, std::span<const T> values) : Tensor(dtype_of<T>(), std::move(dims)) {
    if (values.size_bytes() != bytes_) throw std::invalid_argument("a tensor's values do not fill its shape");
    std::copy(values.begin(), values.end(), this->values<T>().begin());
  }

  npu_dtype dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  std::size_t bytes() const { return bytes_; }
  void* data() { return data_.get(); }
  const void* data() const { return data_.get(); }

  // The elements; T is the type of one, or std::uint16_t for the bits of a 16-bit float.
  template <class T>
  std::span<T> values() {
    check_type<T>();
    return {static_cast<T*>(data()), bytes_ / sizeof(T)};
  }
  template <class T>
  std::span<const T> values() const {
    check_type<T>();
    return {static_cast<const T*>(data()), bytes_ / sizeof(T)};
  }

  // The first elements, under the shape that a run has decided.
  void resize(Dims dims) {
    const std::size_t bytes = count(dims) * npu_dtype_bytes(dtype_);
    if (bytes > bytes_) throw std::invalid_argument("a tensor cannot grow");
    bytes_ = bytes;
    dims_ = std::move(dims);
  }

 private:
  struct Release {
    void operator()(std::byte* data) const { ::operator delete[](data, std::align_val_t(64)); }
  };
  static std::size_t count(const Dims& dims) {
    std::size_t product = 1;
    for (const std::int64_t dim : dims) {
      if (dim < 0) throw std::invalid_argument("a tensor's dimension is negative");
      // The bytes of the widest elements must be countable too.
      if (dim && product > SIZE_MAX / 16 / static_cast<std::size_t>(dim)) throw std::bad_array_new_length();
      product *= static_cast<std::size_t>(dim);
    }
    return product;
  }
  static std::unique_ptr<std::byte[], Release> allocate(std::size_t bytes) {
    auto* data =
        static_cast<std::byte*>(::operator new[](std::max<std::size_t>(bytes, 1), std::align_val_t(64)));
    std::fill_n(data, bytes, std::byte{});
    return std::unique_ptr<std::byte[], Release>(data);
  }
  template <class T>
  void check_type() const {
    const bool bits = sizeof(T) == 2 && (dtype_ == NPU_FLOAT16 || dtype_ == NPU_BFLOAT16);
    if (dtype_of<std::remove_const_t<T>>() != dtype_ &&
        !(std::is_same_v<std::remove_const_t<T>, std::uint16_t> && bits)) {
      throw std::invalid_argument(std::string("the elements are of type ") + npu_dtype_name(dtype_));
    }
  }

  npu_dtype dtype_;
  Dims dims_;
  std::size_t bytes_;
  std::unique_ptr<std::byte[], Release> data_;
};

struct Free {
  void operator()(npu_model* model) const { npu_model_free(model); }
  void operator()(npu_stream* stream) const { npu_stream_free(stream); }
  void operator()(npu_buffer* buffer) const { npu_buffer_free(buffer); }
};

// An ordered queue with a thread of its own.
class Stream {
 public:
  Stream() {
    npu_stream* stream = nullptr;
    check(npu_stream_create(&stream));
    handle_.reset(stream);
  }
  // Waits; raises the first error of the runs in it.
  void synchronize() { check(npu_stream_synchronize(handle_.get())); }
  npu_stream* get() const { return handle_.get(); }

 private:
  std::unique_ptr<npu_stream, Free> handle_;
};

// Memory of a device.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes, int device = 0) {
    npu_buffer* buffer = nullptr;
    check(npu_buffer_create(device, bytes, &buffer));
    handle_.reset(buffer);
  }
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(npu_buffer_data(handle_.get())), npu_buffer_bytes(handle_.get())};
  }

 private:
  std::unique_ptr<npu_buffer, Free> handle_;
};

struct LoadOptions {
  int device = 0;
  bool trust = false;  // machine code of a file that this user did not compile may run
};

// A compiled model. Runs from several threads go side by side.
class Model {
 public:
  explicit Model(const std::string& path, LoadOptions options = {}) {
    const npu_load_options given = convert(options);
    npu_model* model = nullptr;
    check(npu_model_load(path.c_str(), &given, &model));
    handle_.reset(model);
  }
  explicit Model(std::span<const std::byte> content, LoadOptions options = {}) {
    const npu_load_options given = convert(options);
    npu_model* model = nullptr;
    check(npu_model_load_memory(content.data(), content.size(), &given, &model));
    handle_.reset(model);
  }

  std::string name() const { return npu_model_name(get()); }
  std::size_t gear_count() const { return npu_model_gear_count(get()); }
  std::vector<TensorInfo> inputs(std::size_t gear = 0) const {
    return describe(npu_model_input_count(get()), npu_model_input, gear);
  }
  std::vector<TensorInfo> outputs(std::size_t gear = 0) const {
    return describe(npu_model_output_count(get()), npu_model_output, gear);
  }

  // Runs; the shapes of the inputs choose the gear.
  std::vector<Tensor> operator()(std::span<const Tensor> tensors) {
    std::vector<npu_array> feeds = arrays(tensors);
    std::size_t gear = 0;
    if (gear_count() > 1) check(npu_model_find_gear(get(), feeds.data(), feeds.size(), &gear));
    std::vector<Tensor> results;
    for (const TensorInfo& info : outputs(gear)) results.emplace_back(info);
    check_types(tensors, gear);
    std::vector<npu_array> wanted = arrays(results);
    check(npu_model_run(get(), gear, feeds.data(), feeds.size(), wanted.data(), wanted.size()));
    for (std::size_t i = 0; i < results.size(); ++i) {
      results[i].resize(Dims(wanted[i].dims, wanted[i].dims + wanted[i].rank));
    }
    return results;
  }

  // Runs on memory of the caller, which is contiguous and of the sizes that inputs() and outputs() tell.
  void run(std::span<const npu_array> inputs, std::span<npu_array> outputs, std::size_t gear = 0) {
    check(npu_model_run(get(), gear, inputs.data(), inputs.size(), outputs.data(), outputs.size()));
  }
  // The same in a stream; all memory is in use until the stream is synchronised.
  void run_async(std::span<const npu_array> inputs, std::span<npu_array> outputs, Stream& stream,
                 std::size_t gear = 0) {
    check(npu_model_run_async(get(), gear, inputs.data(), inputs.size(), outputs.data(), outputs.size(),
                              stream.get()));
  }

  npu_model* get() const { return handle_.get(); }

 private:
  static npu_load_options convert(const LoadOptions& options) {
    return {sizeof(npu_load_options), options.device, options.trust};
  }
  template <class Range>
  static std::vector<npu_array> arrays(Range& tensors) {
    std::vector<npu_array> result;
    for (auto& tensor : tensors) {
      npu_array array{const_cast<void*>(static_cast<const void*>(tensor.data())), tensor.bytes(), {}, 0};
      if (tensor.dims().size() > NPU_MAX_RANK)
        throw std::invalid_argument("a tensor has too many dimensions");
      std::copy(tensor.dims().begin(), tensor.dims().end(), array.dims);
      array.rank = tensor.dims().size();
      result.push_back(array);
    }
    return result;
  }
  void check_types(std::span<const Tensor> tensors, std::size_t gear) const {
    const std::vector<TensorInfo> wanted = inputs(gear);
    for (std::size_t i = 0; i < std::min(wanted.size(), tensors.size()); ++i) {
      if (tensors[i].dtype() == wanted[i].dtype && tensors[i].dims() == wanted[i].dims) continue;
      throw Error(NPU_INVALID_ARGUMENT,
                  "[E10020] input '" + wanted[i].name + "' is of another type or shape than the model takes");
    }
  }
  template <class Ask>
  std::vector<TensorInfo> describe(std::size_t count, Ask ask, std::size_t gear) const {
    std::vector<TensorInfo> result;
    for (std::size_t i = 0; i < count; ++i) {
      npu_tensor_info info{};
      info.size = sizeof info;
      check(ask(get(), gear, i, &info));
      result.push_back({info.name, info.dtype, Dims(info.dims, info.dims + info.rank), info.format,
                        info.bytes, info.dynamic != 0});
    }
    return result;
  }

  std::unique_ptr<npu_model, Free> handle_;
};

// Compiles a model file to an `.om` file in a process of the compiler (see npu_compile).
inline void compile_file(const std::string& model, const std::string& om,
                         const std::vector<std::string>& options = {}) {
  std::vector<const char*> words;
  for (const std::string& option : options) words.push_back(option.c_str());
  words.push_back(nullptr);
  check(npu_compile(model.c_str(), om.c_str(), words.data()));
}

}  // namespace tf_adapter

#endif  // NPU_NPU_HPP_
