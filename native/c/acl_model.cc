// acl/acl.h: models, their descriptions, datasets, gears and runs.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "c/acl_aipp.h"
#include "c/acl_state.h"
#include "c/acl_tensor.h"
#include "model/model.h"

namespace npu::acl {
namespace {

// Pre-processing of a plan's inputs.
Json::List aipp(const Plan& plan) {
  const Json* records = plan.report.find("aipp");
  return records ? records->items("aipp") : Json::List();
}

constexpr std::int64_t kAippBytes =
    4096;  // of the settings input, which is never read: settings are kept separately

// A model and the current gear.
struct Loaded {
  explicit Loaded(std::shared_ptr<LoadedModel> given) : model(std::move(given)) {
    const Package& package = model->package();
    current = static_cast<std::size_t>(&package.largest() - package.plans.data());
    inputs = package.largest().inputs;
    describe_aipp(package.plans[0]);
    outputs = package.plans[0].outputs;
    for (const Plan& plan : package.plans) {
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        if (plan.outputs[i].bytes() > outputs[i].bytes()) outputs[i] = plan.outputs[i];
      }
    }
    if (package.gears) {
      const auto numbers = static_cast<std::int64_t>(package.gears->choices[0].size());
      inputs.push_back({ACL_DYNAMIC_TENSOR_NAME, DType::Int64, {numbers}, "ND", false});
    }
  }

  // Dynamically pre-processed images are bytes, each with one more input for the settings.
  void describe_aipp(const Plan& plan) {
    for (const Json& record : aipp(plan)) {
      if (record.at("mode", "aipp").text("aipp") != "dynamic") continue;
      const auto last = static_cast<std::int64_t>(plan.inputs.size()) - 1;
      const auto index = static_cast<std::size_t>(record.at("input", "aipp").integer("aipp", 0, last));
      const Json& size = record.at("config", "aipp").at("max_src_image_size", "aipp");
      images.emplace_back(index, record.at("layout", "aipp").text("aipp") == "NHWC");
      inputs[index] = {inputs[index].name, DType::UInt8, {size.integer("aipp")}, "ND", false};
      inputs.push_back({ACL_DYNAMIC_AIPP_NAME, DType::UInt8, {kAippBytes}, "ND", false});
    }
  }

  // The index of an input among those with dynamic AIPP, else -1.
  int image_place(std::size_t index) const {
    for (std::size_t i = 0; i < images.size(); ++i) {
      if (images[i].first == index) return static_cast<int>(i);
    }
    return -1;
  }

  const std::optional<Gears>& gears() const { return model->package().gears; }

  std::shared_ptr<LoadedModel> model;
  std::vector<Port> inputs, outputs;  // at maximum size; with gears one more input, the sizes of the gear
  std::vector<std::pair<std::size_t, bool>> images;  // inputs with dynamic AIPP; whether channels come last
  std::mutex mutex;
  std::size_t current;
  std::vector<Dims> actual;  // shapes of the outputs in the last run; empty before it
};

struct Models {
  std::mutex mutex;
  std::map<std::uint32_t, std::shared_ptr<Loaded>> loaded;
  std::uint32_t next = 1;
};

Models& models() {
  static auto* all = new Models;
  return *all;
}

std::shared_ptr<Loaded> find_model(std::uint32_t id) {
  Models& all = models();
  const std::lock_guard lock(all.mutex);
  const auto found = all.loaded.find(id);
  require(found != all.loaded.end(), std::to_string(id) + " is not the id of a loaded model",
          ACL_ERROR_INVALID_MODEL_ID);
  return found->second;
}

template <class Read>
aclError load(const char* function, std::uint32_t* id, Read read) {
  return guard(function, [&] {
    require(id, "the address of the model's id is null");
    current_context();
    auto loaded = std::make_shared<Loaded>(read());
    Models& all = models();
    const std::lock_guard lock(all.mutex);
    all.loaded.emplace(all.next, std::move(loaded));
    *id = all.next++;
  });
}

std::shared_ptr<LoadedModel> from_file(const char* path) {
  require(path, "the path is null");
  return LoadedModel::from_file(path, false, current_context().device);
}

std::shared_ptr<LoadedModel> from_memory(const void* data, std::size_t bytes) {
  require(data && bytes, "the model is null or empty");
  return LoadedModel::from_memory({static_cast<const std::byte*>(data), bytes}, false,
                                  current_context().device);
}

void sizes_of(const Package& package, std::size_t* work, std::size_t* weights) {
  require(work && weights, "an address is null");
  *work = *weights = 0;
  std::map<const std::byte*, std::size_t> constants;
  for (const Plan& plan : package.plans) {
    *work = std::max(*work, plan.arena_bytes);
    for (const Bytes& constant : plan.constants) constants[constant.data()] = constant.size();
  }
  for (const auto& [address, bytes] : constants) *weights += bytes;
}

void fill_dims(const std::string& name, const Dims& shape, aclmdlIODims* dims) {
  require(dims, "the dimensions are null");
  require(shape.size() <= ACL_MAX_DIM_CNT, "there are more dimensions than fit");
  std::memset(dims->name, 0, sizeof dims->name);
  name.copy(dims->name, sizeof dims->name - 1);
  dims->dimCount = shape.size();
  std::copy(shape.begin(), shape.end(), dims->dims);
}

}  // namespace

void clear_models() {
  Models& all = models();
  const std::lock_guard lock(all.mutex);
  all.loaded.clear();
}

}  // namespace npu::acl

using namespace npu::acl;

struct aclmdlDesc {
  std::shared_ptr<Loaded> loaded;
};

struct aclmdlConfigHandle {
  std::string path;
  const void* data = nullptr;
  std::size_t bytes = 0;
};

struct aclmdlDataset {
  std::vector<aclDataBuffer*> buffers;
  std::map<std::size_t, aclTensorDesc*> descs;
  std::map<std::size_t, std::unique_ptr<aclTensorDesc>> own;  // those of outputs, made after a run
  std::optional<std::size_t> gear;
  std::map<std::size_t, aclmdlAIPP> aipp;  // pre-processing by input
};

namespace {

const Loaded& described(const aclmdlDesc* desc) {
  require(desc && desc->loaded, "the description is null or empty: call aclmdlGetDesc first");
  return *desc->loaded;
}

const npu::Port& port_of(const aclmdlDesc* desc, std::vector<npu::Port> Loaded::* side, std::size_t index) {
  const std::vector<npu::Port>& ports = described(desc).*side;
  require(index < ports.size(), "the model has " + std::to_string(ports.size()) + " of these, there is no " +
                                    std::to_string(index));
  return ports[index];
}

aclError index_by_name(const char* function, const aclmdlDesc* desc, std::vector<npu::Port> Loaded::* side,
                       const char* name, std::size_t* index) {
  return guard(function, [&] {
    require(name && index, "the name or the index is null");
    const std::vector<npu::Port>& ports = described(desc).*side;
    const auto found =
        std::find_if(ports.begin(), ports.end(), [&](const npu::Port& port) { return port.name == name; });
    require(found != ports.end(), std::string("there is none called '") + name + "'");
    *index = static_cast<std::size_t>(found - ports.begin());
  });
}

// The gear for the next run of a dataset.
void choose(const char* function, std::uint32_t id, aclmdlDataset* dataset, std::size_t index,
            npu::Gears::Kind kind, const npu::Dims& choice) {
  const std::shared_ptr<Loaded> loaded = find_model(id);
  require(dataset, "the dataset is null");
  require(loaded->gears() && loaded->gears()->kind == kind, "the model was not compiled with such gears",
          ACL_ERROR_MODEL_NOT_DYNAMIC);
  require(index == loaded->inputs.size() - 1,
          std::to_string(index) + " is not the index of " + ACL_DYNAMIC_TENSOR_NAME);
  const std::vector<npu::Dims>& choices = loaded->gears()->choices;
  const auto found = std::find(choices.begin(), choices.end(), choice);
  require(found != choices.end(), std::string(function) + ": this is none of the gears",
          ACL_ERROR_GE_DYNAMIC_BATCH_SIZE_INVALID);
  dataset->gear = static_cast<std::size_t>(found - choices.begin());
  const std::lock_guard lock(loaded->mutex);
  loaded->current = *dataset->gear;
  loaded->actual.clear();
  if (index >= dataset->buffers.size()) return;
  const aclDataBuffer& buffer = *dataset->buffers[index];  // where other runtimes read them
  const std::size_t bytes = choice.size() * sizeof(std::int64_t);
  if (buffer.data && buffer.bytes >= bytes) std::memcpy(buffer.data, choice.data(), bytes);
}

std::size_t gear_of(const Loaded& loaded, const aclmdlDataset& feeds) {
  if (!loaded.gears()) return 0;
  if (feeds.gear) return *feeds.gear;
  std::vector<npu::Dims> shapes;
  for (std::size_t i = 0; i < loaded.model->plan(0).inputs.size(); ++i) {
    const auto found = feeds.descs.find(i);
    require(found != feeds.descs.end(), "no gear is chosen: call aclmdlSetDynamicBatchSize or another first",
            ACL_ERROR_GE_DYNAMIC_BATCH_SIZE_INVALID);
    shapes.push_back(found->second->dims);
  }
  return loaded.model->find_gear(shapes);
}

std::vector<npu::Array> arrays_of(const aclmdlDataset& dataset, const std::vector<npu::Port>& ports,
                                  const Loaded* model, const char* side, int code) {
  const std::size_t count = dataset.buffers.size();  // inputs may have more, without data
  const std::size_t extra = model ? model->inputs.size() - ports.size() : 0;
  require(count == ports.size() || count == ports.size() + extra,
          "the model has " + std::to_string(ports.size()) + " " + side + "s, the dataset " +
              std::to_string(count) + " buffers",
          code);
  std::vector<npu::Array> arrays;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const aclDataBuffer& buffer = *dataset.buffers[i];
    const bool image = model && model->image_place(i) >= 0;
    const std::size_t needed = image ? 1 : ports[i].bytes();
    require(buffer.bytes >= needed && (buffer.data || !needed),
            std::string(side) + " '" + ports[i].name + "' needs " + std::to_string(needed) +
                " bytes, its buffer has " + std::to_string(buffer.data ? buffer.bytes : 0),
            code);
    arrays.push_back({buffer.data, buffer.bytes, {}});
  }
  return arrays;
}

// Pre-processes images as set in the dataset; replaces their arrays and returns the results.
std::vector<std::vector<std::byte>> prepare(const Loaded& loaded, const npu::Plan& plan,
                                            const std::map<std::size_t, aclmdlAIPP>& settings,
                                            std::vector<npu::Array>& arrays) {
  std::vector<std::vector<std::byte>> made;
  for (const auto& [index, channels_last] : loaded.images) {
    npu::Array& array = arrays[index];
    const npu::Bytes images{static_cast<const std::byte*>(array.data), array.bytes};
    made.push_back(prepare_images(settings.at(index), plan.inputs[index], channels_last, images));
    array = {made.back().data(), made.back().size(), {}};
  }
  return made;
}

// Prepares a checked run.
std::function<void()> execution(std::uint32_t id, const aclmdlDataset* feeds, aclmdlDataset* results) {
  require(feeds && results, "a dataset is null");
  const std::shared_ptr<Loaded> loaded = find_model(id);
  const std::size_t gear = gear_of(*loaded, *feeds);
  const npu::Plan& plan = loaded->model->plan(gear);
  for (const auto& [index, channels_last] : loaded->images) {
    require(feeds->aipp.contains(index),
            "AIPP of input " + std::to_string(index) + " is not set: call aclmdlSetInputAIPP first");
  }
  auto inputs = arrays_of(*feeds, plan.inputs, loaded.get(), "input", ACL_ERROR_MODEL_INPUT_NOT_MATCH);
  auto outputs = arrays_of(*results, plan.outputs, nullptr, "output", ACL_ERROR_MODEL_OUTPUT_NOT_MATCH);
  return [loaded, gear, results, inputs = std::move(inputs), outputs = std::move(outputs),
          settings = feeds->aipp]() mutable {
    const npu::Plan& plan = loaded->model->plan(gear);
    const auto kept = prepare(*loaded, plan, settings, inputs);
    loaded->model->run(gear, inputs, outputs);
    const std::vector<npu::Port>& ports = plan.outputs;
    const std::lock_guard lock(loaded->mutex);
    loaded->current = gear;
    loaded->actual.clear();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      loaded->actual.push_back(outputs[i].dims);
      aclTensorDesc shape{type_code(ports[i].dtype), outputs[i].dims, format_code(ports[i].format)};
      if (const auto given = results->descs.find(i); given != results->descs.end()) {
        *given->second = std::move(shape);
      } else {
        results->own[i] = std::make_unique<aclTensorDesc>(std::move(shape));
      }
    }
  };
}

}  // namespace

// -- loading

aclError aclmdlLoadFromFile(const char* modelPath, uint32_t* modelId) {
  return load("aclmdlLoadFromFile", modelId, [&] { return from_file(modelPath); });
}

aclError aclmdlLoadFromMem(const void* model, size_t modelSize, uint32_t* modelId) {
  return load("aclmdlLoadFromMem", modelId, [&] { return from_memory(model, modelSize); });
}

aclError aclmdlLoadFromFileWithMem(const char* modelPath, uint32_t* modelId, void*, size_t, void*, size_t) {
  return load("aclmdlLoadFromFileWithMem", modelId, [&] { return from_file(modelPath); });
}

aclError aclmdlLoadFromMemWithMem(const void* model, size_t modelSize, uint32_t* modelId, void*, size_t,
                                  void*, size_t) {
  return load("aclmdlLoadFromMemWithMem", modelId, [&] { return from_memory(model, modelSize); });
}

aclmdlConfigHandle* aclmdlCreateConfigHandle(void) {
  return guard_value("aclmdlCreateConfigHandle", static_cast<aclmdlConfigHandle*>(nullptr),
                     [] { return new aclmdlConfigHandle; });
}

aclError aclmdlDestroyConfigHandle(aclmdlConfigHandle* handle) {
  return guard("aclmdlDestroyConfigHandle", [&] {
    require(handle, "the configuration is null");
    delete handle;
  });
}

aclError aclmdlSetConfigOpt(aclmdlConfigHandle* handle, aclmdlConfigAttr attr, const void* attrValue,
                            size_t valueSize) {
  return guard("aclmdlSetConfigOpt", [&] {
    require(handle && attrValue, "the configuration or the value is null");
    const auto read = [&](auto& to) {
      require(valueSize == sizeof to, "the size of the value is not that of its type");
      std::memcpy(&to, attrValue, sizeof to);
    };
    switch (attr) {
      case ACL_MDL_PATH_PTR: {
        const char* path = nullptr;
        read(path);
        require(path, "the path is null");
        handle->path = path;
        return;
      }
      case ACL_MDL_MEM_ADDR_PTR:
        return read(handle->data);
      case ACL_MDL_MEM_SIZET:
        return read(handle->bytes);
      case ACL_MDL_PRIORITY_INT32:
      case ACL_MDL_LOAD_TYPE_SIZET:
        return;  // priorities have no effect; the type follows from path and address
    }
    require(false, "the option is unknown");
  });
}

aclError aclmdlLoadWithConfig(const aclmdlConfigHandle* handle, uint32_t* modelId) {
  return load("aclmdlLoadWithConfig", modelId, [&] {
    require(handle && (handle->data || !handle->path.empty()), "the configuration names no model");
    return handle->path.empty() ? from_memory(handle->data, handle->bytes) : from_file(handle->path.c_str());
  });
}

aclError aclmdlUnload(uint32_t modelId) {
  return guard("aclmdlUnload", [&] {
    const std::shared_ptr<Loaded> kept = find_model(modelId);  // ends after the lock
    const std::lock_guard lock(models().mutex);
    models().loaded.erase(modelId);
  });
}

aclError aclmdlQuerySize(const char* fileName, size_t* workSize, size_t* weightSize) {
  return guard("aclmdlQuerySize", [&] {
    require(fileName, "the path is null");
    sizes_of(npu::Package::read(npu::FileImage::read(fileName), fileName, false), workSize, weightSize);
  });
}

aclError aclmdlQuerySizeFromMem(const void* model, size_t modelSize, size_t* workSize, size_t* weightSize) {
  return guard("aclmdlQuerySizeFromMem", [&] {
    require(model && modelSize, "the model is null or empty");
    auto image = npu::FileImage::copy({static_cast<const std::byte*>(model), modelSize});
    sizes_of(npu::Package::read(std::move(image), "the model in memory", false), workSize, weightSize);
  });
}

// -- descriptions

aclmdlDesc* aclmdlCreateDesc(void) {
  return guard_value("aclmdlCreateDesc", static_cast<aclmdlDesc*>(nullptr), [] { return new aclmdlDesc; });
}

aclError aclmdlDestroyDesc(aclmdlDesc* modelDesc) {
  return guard("aclmdlDestroyDesc", [&] {
    require(modelDesc, "the description is null");
    delete modelDesc;
  });
}

aclError aclmdlGetDesc(aclmdlDesc* modelDesc, uint32_t modelId) {
  return guard("aclmdlGetDesc", [&] {
    require(modelDesc, "the description is null");
    modelDesc->loaded = find_model(modelId);
  });
}

size_t aclmdlGetNumInputs(aclmdlDesc* modelDesc) {
  return guard_value("aclmdlGetNumInputs", size_t{0}, [&] { return described(modelDesc).inputs.size(); });
}

size_t aclmdlGetNumOutputs(aclmdlDesc* modelDesc) {
  return guard_value("aclmdlGetNumOutputs", size_t{0}, [&] { return described(modelDesc).outputs.size(); });
}

size_t aclmdlGetInputSizeByIndex(aclmdlDesc* modelDesc, size_t index) {
  return guard_value("aclmdlGetInputSizeByIndex", size_t{0},
                     [&] { return port_of(modelDesc, &Loaded::inputs, index).bytes(); });
}

size_t aclmdlGetOutputSizeByIndex(aclmdlDesc* modelDesc, size_t index) {
  return guard_value("aclmdlGetOutputSizeByIndex", size_t{0},
                     [&] { return port_of(modelDesc, &Loaded::outputs, index).bytes(); });
}

const char* aclmdlGetInputNameByIndex(const aclmdlDesc* modelDesc, size_t index) {
  return guard_value("aclmdlGetInputNameByIndex", "",
                     [&] { return port_of(modelDesc, &Loaded::inputs, index).name.c_str(); });
}

const char* aclmdlGetOutputNameByIndex(const aclmdlDesc* modelDesc, size_t index) {
  return guard_value("aclmdlGetOutputNameByIndex", "",
                     [&] { return port_of(modelDesc, &Loaded::outputs, index).name.c_str(); });
}

aclError aclmdlGetInputIndexByName(const aclmdlDesc* modelDesc, const char* name, size_t* index) {
  return index_by_name("aclmdlGetInputIndexByName", modelDesc, &Loaded::inputs, name, index);
}

aclError aclmdlGetOutputIndexByName(const aclmdlDesc* modelDesc, const char* name, size_t* index) {
  return index_by_name("aclmdlGetOutputIndexByName", modelDesc, &Loaded::outputs, name, index);
}

aclFormat aclmdlGetInputFormat(const aclmdlDesc* modelDesc, size_t index) {
  return guard_value("aclmdlGetInputFormat", ACL_FORMAT_UNDEFINED,
                     [&] { return format_code(port_of(modelDesc, &Loaded::inputs, index).format); });
}

aclFormat aclmdlGetOutputFormat(const aclmdlDesc* modelDesc, size_t index) {
  return guard_value("aclmdlGetOutputFormat", ACL_FORMAT_UNDEFINED,
                     [&] { return format_code(port_of(modelDesc, &Loaded::outputs, index).format); });
}

aclDataType aclmdlGetInputDataType(const aclmdlDesc* modelDesc, size_t index) {
  return guard_value("aclmdlGetInputDataType", ACL_DT_UNDEFINED,
                     [&] { return type_code(port_of(modelDesc, &Loaded::inputs, index).dtype); });
}

aclDataType aclmdlGetOutputDataType(const aclmdlDesc* modelDesc, size_t index) {
  return guard_value("aclmdlGetOutputDataType", ACL_DT_UNDEFINED,
                     [&] { return type_code(port_of(modelDesc, &Loaded::outputs, index).dtype); });
}

aclError aclmdlGetInputDims(const aclmdlDesc* modelDesc, size_t index, aclmdlIODims* dims) {
  return guard("aclmdlGetInputDims", [&] {
    const npu::Port& port = port_of(modelDesc, &Loaded::inputs, index);
    const Loaded& loaded = described(modelDesc);
    npu::Dims shape = port.dims;  // -1 for dimensions that gears vary
    for (std::size_t gear = 0; loaded.gears() && gear < loaded.model->gear_count(); ++gear) {
      const std::vector<npu::Port>& inputs = loaded.model->plan(gear).inputs;
      for (std::size_t i = 0; index < inputs.size() && i < shape.size(); ++i) {
        if (inputs[index].dims[i] != port.dims[i]) shape[i] = -1;
      }
    }
    fill_dims(port.name, shape, dims);
  });
}

aclError aclmdlGetInputDimsV2(const aclmdlDesc* modelDesc, size_t index, aclmdlIODims* dims) {
  return aclmdlGetInputDims(modelDesc, index, dims);
}

aclError aclmdlGetOutputDims(const aclmdlDesc* modelDesc, size_t index, aclmdlIODims* dims) {
  return guard("aclmdlGetOutputDims", [&] {
    const npu::Port& port = port_of(modelDesc, &Loaded::outputs, index);
    fill_dims(port.name, port.dims, dims);
  });
}

aclError aclmdlGetCurOutputDims(const aclmdlDesc* modelDesc, size_t index, aclmdlIODims* dims) {
  return guard("aclmdlGetCurOutputDims", [&] {
    const npu::Port& port = port_of(modelDesc, &Loaded::outputs, index);
    Loaded& loaded = *modelDesc->loaded;
    const std::lock_guard lock(loaded.mutex);
    const npu::Dims& planned = loaded.model->plan(loaded.current).outputs[index].dims;
    fill_dims(port.name, loaded.actual.empty() ? planned : loaded.actual[index], dims);
  });
}

aclError aclmdlGetDynamicBatch(const aclmdlDesc* modelDesc, aclmdlBatch* batch) {
  return guard("aclmdlGetDynamicBatch", [&] {
    const std::optional<npu::Gears>& gears = described(modelDesc).gears();
    require(batch, "the batches are null");
    batch->batchCount = 0;
    if (!gears || gears->kind != npu::Gears::Kind::Batch) return;
    for (const npu::Dims& choice : gears->choices) {
      if (batch->batchCount == ACL_MAX_BATCH_NUM) return;
      batch->batch[batch->batchCount++] = static_cast<uint64_t>(choice.at(0));
    }
  });
}

aclError aclmdlGetDynamicHW(const aclmdlDesc* modelDesc, size_t, aclmdlHW* hw) {
  return guard("aclmdlGetDynamicHW", [&] {
    const std::optional<npu::Gears>& gears = described(modelDesc).gears();
    require(hw, "the sizes are null");
    hw->hwCount = 0;
    if (!gears || gears->kind != npu::Gears::Kind::ImageSize) return;
    for (const npu::Dims& choice : gears->choices) {
      if (hw->hwCount == ACL_MAX_HW_NUM) return;
      for (std::size_t i = 0; i < 2; ++i) hw->hw[hw->hwCount][i] = static_cast<uint64_t>(choice.at(i));
      ++hw->hwCount;
    }
  });
}

aclError aclmdlGetInputDynamicGearCount(const aclmdlDesc* modelDesc, size_t, size_t* gearCount) {
  return guard("aclmdlGetInputDynamicGearCount", [&] {
    const std::optional<npu::Gears>& gears = described(modelDesc).gears();
    require(gearCount, "the address is null");
    *gearCount = gears && gears->kind == npu::Gears::Kind::Dims ? gears->choices.size() : 0;
  });
}

aclError aclmdlGetInputDynamicDims(const aclmdlDesc* modelDesc, size_t, aclmdlIODims* dims,
                                   size_t gearCount) {
  return guard("aclmdlGetInputDynamicDims", [&] {
    const Loaded& loaded = described(modelDesc);
    if (!loaded.gears() || loaded.gears()->kind != npu::Gears::Kind::Dims) return;
    for (std::size_t gear = 0; gear < std::min(gearCount, loaded.model->gear_count()); ++gear) {
      npu::Dims all;
      for (const auto& [name, shape] : loaded.gears()->inputs) {
        for (const npu::Port& port : loaded.model->plan(gear).inputs) {
          if (port.name == name) all.insert(all.end(), port.dims.begin(), port.dims.end());
        }
      }
      fill_dims("", all, &dims[gear]);
    }
  });
}

aclError aclmdlGetAippType(uint32_t modelId, size_t index, aclmdlInputAippType* type,
                           size_t* dynamicAttachedDataIndex) {
  return guard("aclmdlGetAippType", [&] {
    require(type && dynamicAttachedDataIndex, "an address is null");
    const std::shared_ptr<Loaded> loaded = find_model(modelId);
    require(index < loaded->inputs.size(), "the model has no such input");
    *type = ACL_DATA_WITHOUT_AIPP;
    *dynamicAttachedDataIndex = 0xFFFFFFFF;
    const npu::Plan& plan = loaded->model->plan(0);
    if (const int place = loaded->image_place(index); place >= 0) {
      *type = ACL_DATA_WITH_DYNAMIC_AIPP;
      *dynamicAttachedDataIndex = plan.inputs.size() + static_cast<std::size_t>(place);
      return;
    }
    if (index >= plan.inputs.size() && index < plan.inputs.size() + loaded->images.size()) {
      *type = ACL_DYNAMIC_AIPP_NODE;
      return;
    }
    for (const npu::Json& record : aipp(plan)) {
      if (record.at("input", "aipp").integer("aipp") == static_cast<std::int64_t>(index)) {
        *type = ACL_DATA_WITH_STATIC_AIPP;
      }
    }
  });
}

// -- datasets and runs

aclmdlDataset* aclmdlCreateDataset(void) {
  return guard_value("aclmdlCreateDataset", static_cast<aclmdlDataset*>(nullptr),
                     [] { return new aclmdlDataset; });
}

aclError aclmdlDestroyDataset(const aclmdlDataset* dataset) {
  return guard("aclmdlDestroyDataset", [&] {
    require(dataset, "the dataset is null");
    delete dataset;
  });
}

aclError aclmdlAddDatasetBuffer(aclmdlDataset* dataset, aclDataBuffer* dataBuffer) {
  return guard("aclmdlAddDatasetBuffer", [&] {
    require(dataset && dataBuffer, "the dataset or the data buffer is null");
    dataset->buffers.push_back(dataBuffer);
  });
}

size_t aclmdlGetDatasetNumBuffers(const aclmdlDataset* dataset) {
  return dataset ? dataset->buffers.size() : 0;
}

aclDataBuffer* aclmdlGetDatasetBuffer(const aclmdlDataset* dataset, size_t index) {
  return guard_value("aclmdlGetDatasetBuffer", static_cast<aclDataBuffer*>(nullptr), [&] {
    require(dataset && index < dataset->buffers.size(), "the dataset has no such buffer");
    return dataset->buffers[index];
  });
}

aclError aclmdlSetDatasetTensorDesc(aclmdlDataset* dataset, aclTensorDesc* tensorDesc, size_t index) {
  return guard("aclmdlSetDatasetTensorDesc", [&] {
    require(dataset && tensorDesc, "the dataset or the description is null");
    require(index < dataset->buffers.size(), "the dataset has no such buffer");
    dataset->descs[index] = tensorDesc;
  });
}

aclTensorDesc* aclmdlGetDatasetTensorDesc(const aclmdlDataset* dataset, size_t index) {
  if (!dataset) return nullptr;
  if (const auto given = dataset->descs.find(index); given != dataset->descs.end()) return given->second;
  const auto made = dataset->own.find(index);
  return made == dataset->own.end() ? nullptr : made->second.get();
}

aclError aclmdlExecute(uint32_t modelId, const aclmdlDataset* input, aclmdlDataset* output) {
  return guard("aclmdlExecute", [&] {
    current_context();
    execution(modelId, input, output)();
  });
}

aclError aclmdlExecuteAsync(uint32_t modelId, const aclmdlDataset* input, aclmdlDataset* output,
                            aclrtStream stream) {
  return guard("aclmdlExecuteAsync", [&] { stream_of(stream).submit(execution(modelId, input, output)); });
}

// -- gears

aclError aclmdlSetDynamicBatchSize(uint32_t modelId, aclmdlDataset* dataset, size_t index,
                                   uint64_t batchSize) {
  return guard("aclmdlSetDynamicBatchSize", [&] {
    choose("batch", modelId, dataset, index, npu::Gears::Kind::Batch, {static_cast<int64_t>(batchSize)});
  });
}

aclError aclmdlSetDynamicHWSize(uint32_t modelId, aclmdlDataset* dataset, size_t index, uint64_t height,
                                uint64_t width) {
  return guard("aclmdlSetDynamicHWSize", [&] {
    choose("image size", modelId, dataset, index, npu::Gears::Kind::ImageSize,
           {static_cast<int64_t>(height), static_cast<int64_t>(width)});
  });
}

aclError aclmdlSetInputDynamicDims(uint32_t modelId, aclmdlDataset* dataset, size_t index,
                                   const aclmdlIODims* dims) {
  return guard("aclmdlSetInputDynamicDims", [&] {
    require(dims && dims->dimCount <= ACL_MAX_DIM_CNT, "the dimensions are null or too many");
    const npu::Dims given(dims->dims, dims->dims + dims->dimCount);
    const std::shared_ptr<Loaded> loaded = find_model(modelId);
    npu::Dims places, choice;  // the dimensions of all inputs, -1 for varying ones; the values of those
    for (const auto& [name, shape] :
         loaded->gears() ? loaded->gears()->inputs : decltype(npu::Gears::inputs)()) {
      places.insert(places.end(), shape.begin(), shape.end());
    }
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (given.size() != places.size() || places[i] == -1) choice.push_back(given[i]);
    }
    choose("dims", modelId, dataset, index, npu::Gears::Kind::Dims, choice);
  });
}

// -- AIPP

aclError aclmdlSetInputAIPP(uint32_t modelId, aclmdlDataset* dataset, size_t index,
                            const aclmdlAIPP* aippParmsSet) {
  return guard("aclmdlSetInputAIPP", [&] {
    const std::shared_ptr<Loaded> loaded = find_model(modelId);
    require(dataset && aippParmsSet, "the dataset or the settings are null");
    const std::size_t first = loaded->model->plan(0).inputs.size();
    require(index >= first && index - first < loaded->images.size(),
            std::to_string(index) + " is not the index of " + ACL_DYNAMIC_AIPP_NAME);
    dataset->aipp.insert_or_assign(loaded->images[index - first].first, *aippParmsSet);
  });
}

aclError aclmdlSetAIPPByInputIndex(uint32_t modelId, aclmdlDataset* dataset, size_t index,
                                   const aclmdlAIPP* aippParmsSet) {
  return guard("aclmdlSetAIPPByInputIndex", [&] {
    const std::shared_ptr<Loaded> loaded = find_model(modelId);
    require(dataset && aippParmsSet, "the dataset or the settings are null");
    require(loaded->image_place(index) >= 0,
            "input " + std::to_string(index) + " was not compiled with dynamic AIPP");
    dataset->aipp.insert_or_assign(index, *aippParmsSet);
  });
}
