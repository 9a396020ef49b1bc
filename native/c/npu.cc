// Implementation of npu/npu.h.
#include "npu/npu.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "c/compile.h"
#include "c/status.h"
#include "c/stream.h"
#include "core/device.h"
#include "model/model.h"

struct npu_model {
  std::shared_ptr<npu::LoadedModel> loaded;
};

struct npu_buffer {
  npu::DeviceMemory memory;
  std::size_t bytes;
};

struct npu_stream {
  npu::Stream stream;
};

namespace {

using npu::guarded;
using npu::require;

static_assert(NPU_BOOL == static_cast<int>(npu::DType::Bool) && npu::kDTypeCount == NPU_BOOL + 1);

npu_load_options read_options(const npu_load_options* options) {
  npu_load_options given{sizeof(npu_load_options), 0, 0};
  if (!options) return given;
  require(options->size >= sizeof(npu_load_options), "the options say that they are smaller than they are");
  return *options;
}

npu_status load(npu_model** model, const auto& read) noexcept {
  return guarded([&] {
    require(model, "the address of the model is null");
    *model = nullptr;
    *model = new npu_model{read()};
  });
}

npu_status describe(const npu_model* model, const std::vector<npu::Port> npu::Plan::* side, size_t gear,
                    size_t index, npu_tensor_info* info) noexcept {
  return guarded([&] {
    require(model && info, "the model or the description is null");
    require(info->size >= sizeof(npu_tensor_info), "size of the description is not set");
    require(gear < model->loaded->gear_count(), "there is no gear of this number");
    const std::vector<npu::Port>& ports = model->loaded->plan(gear).*side;
    require(index < ports.size(), "there is no tensor of this number");
    const npu::Port& port = ports[index];
    *info = {info->size,        static_cast<npu_dtype>(port.dtype),
             port.name.c_str(), port.format.c_str(),
             port.dims.data(),  port.dims.size(),
             port.bytes(),      port.dynamic};
  });
}

std::vector<npu::Array> read_arrays(const npu_array* arrays, size_t count) {
  require(arrays || !count, "the arrays are null");
  std::vector<npu::Array> result;
  for (size_t i = 0; i < count; ++i) result.push_back({arrays[i].data, arrays[i].bytes, {}});
  return result;
}

void run(npu::LoadedModel& model, size_t gear, const std::vector<npu::Array>& inputs,
         std::vector<npu::Array>& results, npu_array* outputs) {
  model.run(gear, inputs, results);
  for (size_t i = 0; i < results.size(); ++i) {
    outputs[i].rank = std::min<size_t>(results[i].dims.size(), NPU_MAX_RANK);
    std::copy_n(results[i].dims.begin(), outputs[i].rank, outputs[i].dims);
  }
}

}  // namespace

uint32_t npu_version(void) { return NPU_VERSION_MAJOR * 1000 + NPU_VERSION_MINOR; }

const char* npu_last_error(void) { return npu::last_message().c_str(); }

const char* npu_dtype_name(npu_dtype dtype) {
  const auto number = static_cast<int>(dtype);
  return number >= 0 && number <= NPU_BOOL ? npu::dtype_name(static_cast<npu::DType>(number)).data() : "";
}

size_t npu_dtype_bytes(npu_dtype dtype) {
  const auto number = static_cast<int>(dtype);
  return number >= 0 && number <= NPU_BOOL ? npu::dtype_size(static_cast<npu::DType>(number)) : 0;
}

int32_t npu_device_count(void) {
  int32_t count = 0;
  guarded([&] { count = npu::Device::count(); });
  return count;
}

npu_status npu_model_load(const char* path, const npu_load_options* options, npu_model** model) {
  return load(model, [&] {
    require(path, "the path is null");
    const npu_load_options given = read_options(options);
    return npu::LoadedModel::from_file(path, given.trust, given.device);
  });
}

npu_status npu_model_load_memory(const void* data, size_t bytes, const npu_load_options* options,
                                 npu_model** model) {
  return load(model, [&] {
    require(data || !bytes, "the data is null");
    const npu_load_options given = read_options(options);
    const npu::Bytes content{static_cast<const std::byte*>(data), bytes};
    return npu::LoadedModel::from_memory(content, given.trust, given.device);
  });
}

void npu_model_free(npu_model* model) { delete model; }

const char* npu_model_name(const npu_model* model) { return model ? model->loaded->name().c_str() : ""; }

size_t npu_model_input_count(const npu_model* model) {
  return model ? model->loaded->plan(0).inputs.size() : 0;
}

size_t npu_model_output_count(const npu_model* model) {
  return model ? model->loaded->plan(0).outputs.size() : 0;
}

size_t npu_model_gear_count(const npu_model* model) { return model ? model->loaded->gear_count() : 0; }

npu_status npu_model_input(const npu_model* model, size_t gear, size_t index, npu_tensor_info* info) {
  return describe(model, &npu::Plan::inputs, gear, index, info);
}

npu_status npu_model_output(const npu_model* model, size_t gear, size_t index, npu_tensor_info* info) {
  return describe(model, &npu::Plan::outputs, gear, index, info);
}

npu_status npu_model_find_gear(const npu_model* model, const npu_array* inputs, size_t input_count,
                               size_t* gear) {
  return guarded([&] {
    require(model && gear && (inputs || !input_count), "the model, the inputs or the gear is null");
    std::vector<npu::Dims> shapes;
    for (size_t i = 0; i < input_count; ++i) {
      require(inputs[i].rank <= NPU_MAX_RANK, "an input has too many dimensions");
      shapes.emplace_back(inputs[i].dims, inputs[i].dims + inputs[i].rank);
    }
    *gear = model->loaded->find_gear(shapes);
  });
}

npu_status npu_model_run(npu_model* model, size_t gear, const npu_array* inputs, size_t input_count,
                         npu_array* outputs, size_t output_count) {
  return guarded([&] {
    require(model, "the model is null");
    std::vector<npu::Array> results = read_arrays(outputs, output_count);
    run(*model->loaded, gear, read_arrays(inputs, input_count), results, outputs);
  });
}

npu_status npu_model_run_async(npu_model* model, size_t gear, const npu_array* inputs, size_t input_count,
                               npu_array* outputs, size_t output_count, npu_stream* stream) {
  return guarded([&] {
    require(model && stream, "the model or the stream is null");
    stream->stream.submit([loaded = model->loaded, gear, in = read_arrays(inputs, input_count),
                           results = read_arrays(outputs, output_count),
                           outputs]() mutable { run(*loaded, gear, in, results, outputs); });
  });
}

npu_status npu_buffer_create(int32_t device, size_t bytes, npu_buffer** buffer) {
  return guarded([&] {
    require(buffer, "the address of the buffer is null");
    *buffer = nullptr;
    *buffer = new npu_buffer{
        npu::DeviceMemory(npu::Device::get(device), npu::MemoryUse::Buffers, bytes, "a buffer"), bytes};
  });
}

void npu_buffer_free(npu_buffer* buffer) { delete buffer; }

void* npu_buffer_data(const npu_buffer* buffer) { return buffer ? buffer->memory.data() : nullptr; }

size_t npu_buffer_bytes(const npu_buffer* buffer) { return buffer ? buffer->bytes : 0; }

npu_status npu_stream_create(npu_stream** stream) {
  return guarded([&] {
    require(stream, "the address of the stream is null");
    *stream = nullptr;
    *stream = new npu_stream;
  });
}

npu_status npu_stream_call(npu_stream* stream, void (*function)(void*), void* argument) {
  return guarded([&] {
    require(stream && function, "the stream or the function is null");
    stream->stream.submit([=] { function(argument); });
  });
}

npu_status npu_stream_synchronize(npu_stream* stream) {
  npu::Failure failure;
  const npu_status status = guarded([&] {
    require(stream, "the stream is null");
    failure = *stream->stream.synchronize();
  });
  if (status != NPU_OK || !failure.code) return status;
  npu::last_message() = std::move(failure.message);
  return failure.code;
}

void npu_stream_free(npu_stream* stream) { delete stream; }

npu_status npu_compile(const char* model_path, const char* om_path, const char* const* options) {
  return guarded([&] {
    require(model_path && om_path, "a path is null");
    std::vector<std::string> further;
    for (; options && *options; ++options) further.emplace_back(*options);
    npu::compile_model(model_path, om_path, further);
  });
}
