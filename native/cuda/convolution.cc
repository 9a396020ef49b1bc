#include "cuda/convolution.h"

#include <map>
#include <mutex>
#include <utility>

#include "cuda/library.h"

namespace npu::cuda {
namespace {

using Handle = struct DnnTag*;
using Raw = void*;

// What is used of cuDNN's backend; numbers are those of its published interface.
enum Kind {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kConfig = 3,
  kHeuristics = 4,
  kPlan = 5,
  kForwardOperation = 10,
  kPointwiseOperation = 13,
  kGraph = 15,
  kPack = 16,
  kTensor = 17
};
enum Type {
  kHandleType = 0,
  kDataType = 1,
  kBool = 2,
  kInt64 = 3,
  kDouble = 5,
  kPointer = 6,
  kConvMode = 7,
  kHeurMode = 8,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15
};
enum Attribute {
  kPointwiseModeOf = 0,
  kPointwisePrecision = 1,
  kConvPrecision = 100,
  kConvModeOf = 101,
  kConvDilations = 102,
  kConvStrides = 103,
  kConvPostPads = 104,
  kConvPrePads = 105,
  kConvSpatialDims = 106,
  kHeurModeOf = 200,
  kHeurGraph = 201,
  kHeurResults = 202,
  kConfigEngine = 300,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardConv = 702,
  kForwardW = 703,
  kForwardX = 704,
  kForwardY = 705,
  kPointwiseDesc = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kGraphHandle = 800,
  kGraphOps = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorDims = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorVirtual = 907,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineNotes = 1303,
};
constexpr int kFloat = 0, kHalf = 2, kBfloat = 9;
constexpr int kCrossCorrelation = 1;
constexpr int kAdd = 0, kRelu = 100;
constexpr int kNoteTensorCore = 0, kNoteDownConvert = 1;
constexpr int kMostConfigs = 64, kMostNotes = 16;
constexpr std::int64_t kIdX = 1, kIdW = 2, kIdBias = 3, kIdResidual = 4, kIdY = 5, kIdFirstVirtual = 100;

struct Dnn {
  explicit Dnn(const std::string& path) : library(path) {
    library.find("cudnnCreate", create);
    library.find("cudnnSetStream", set_stream);
    library.find("cudnnGetErrorString", error_text);
    library.find("cudnnBackendCreateDescriptor", descriptor);
    library.find("cudnnBackendDestroyDescriptor", destroy);
    library.find("cudnnBackendFinalize", finalize);
    library.find("cudnnBackendSetAttribute", set);
    library.find("cudnnBackendGetAttribute", get);
    library.find("cudnnBackendExecute", execute);
  }

  Library library;
  int (*create)(Handle*);
  int (*set_stream)(Handle, StreamHandle);
  const char* (*error_text)(int);
  int (*descriptor)(int, Raw*);
  int (*destroy)(Raw);
  int (*finalize)(Raw);
  int (*set)(Raw, int, int, std::int64_t, const void*);
  int (*get)(Raw, int, int, std::int64_t, std::int64_t*, void*);
  int (*execute)(Handle, Raw, Raw);
};

const Dnn& dnn(const std::string& path) {
  static const Dnn library(path);
  return library;
}

void ok(const Dnn& library, int status, const char* what) {
  if (status != 0) throw CudaError(std::string(what) + " failed: " + library.error_text(status));
}

// A descriptor of the backend.
class Descriptor {
 public:
  Descriptor(const Dnn& library, Kind kind) : library_(library) {
    ok(library, library.descriptor(kind, &raw_), "cudnnBackendCreateDescriptor");
  }
  ~Descriptor() {
    if (raw_ != nullptr) library_.destroy(raw_);
  }
  Descriptor(Descriptor&& other) noexcept
      : library_(other.library_), raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;

  Raw raw() const { return raw_; }

  template <typename Value>
  Descriptor& set(Attribute attribute, Type type, const Value& value) {
    ok(library_, library_.set(raw_, attribute, type, 1, &value), "cudnnBackendSetAttribute");
    return *this;
  }
  template <typename Value>
  Descriptor& set_all(Attribute attribute, Type type, const std::vector<Value>& values) {
    ok(library_, library_.set(raw_, attribute, type, static_cast<std::int64_t>(values.size()), values.data()),
       "cudnnBackendSetAttribute");
    return *this;
  }
  int try_finalize() { return library_.finalize(raw_); }
  Descriptor& finalize() {
    ok(library_, try_finalize(), "cudnnBackendFinalize");
    return *this;
  }

 private:
  const Dnn& library_;
  Raw raw_ = nullptr;
};

int type_of(const std::string& dtype) {
  static const std::map<std::string, int> types = {
      {"float32", kFloat}, {"float16", kHalf}, {"bfloat16", kBfloat}};
  const auto found = types.find(dtype);
  if (found == types.end()) throw Unsupported("cuDNN convolutions of " + dtype + " are not implemented");
  return found->second;
}

Handle handle_of(const Dnn& library, Device& device) {
  static std::mutex mutex;
  static std::map<int, Handle> handles;
  const std::scoped_lock lock(mutex);
  Handle& handle = handles[device.index()];
  if (handle == nullptr) ok(library, library.create(&handle), "cudnnCreate");
  return handle;
}

}  // namespace

struct Convolution::Parts {
  Parts(const Dnn& dnn, Device& on) : library(dnn), device(on) {}

  const Dnn& library;
  Device& device;
  Handle handle = nullptr;
  std::vector<Descriptor> owned;    // tensors, operations and the graph
  std::vector<Descriptor> configs;  // one for each candidate
  std::map<std::size_t, Descriptor> plans;
  bool has_bias = false, has_residual = false;

  Raw tensor(std::int64_t id, int type, const Dims& dims, const Dims& strides, bool is_virtual) {
    Descriptor made(library, kTensor);
    made.set(kTensorId, kInt64, id)
        .set(kTensorType, kDataType, type)
        .set_all(kTensorDims, kInt64, dims)
        .set_all(kTensorStrides, kInt64, strides)
        .set(kTensorAlignment, kInt64, std::int64_t{16})
        .set(kTensorVirtual, kBool, is_virtual)
        .finalize();
    return keep(std::move(made));
  }

  Raw keep(Descriptor made) {
    owned.push_back(std::move(made));
    return owned.back().raw();
  }

  Raw pointwise(int mode, Raw x, Raw b, Raw y) {
    Descriptor described(library, kPointwise);
    described.set(kPointwiseModeOf, kPointwiseMode, mode)
        .set(kPointwisePrecision, kDataType, kFloat)
        .finalize();
    Descriptor operation(library, kPointwiseOperation);
    operation.set(kPointwiseDesc, kDescriptor, described.raw()).set(kPointwiseX, kDescriptor, x);
    if (b != nullptr) operation.set(kPointwiseB, kDescriptor, b);
    operation.set(kPointwiseY, kDescriptor, y).finalize();
    keep(std::move(described));
    return keep(std::move(operation));
  }

  // Whether an engine rounds float32 operands to fewer bits, as TF32 does.
  bool rounds_operands(const Descriptor& config) {
    Descriptor engine(library, kEngine);
    Raw raw = engine.raw();
    std::int64_t count = 0;
    ok(library, library.get(config.raw(), kConfigEngine, kDescriptor, 1, &count, &raw),
       "cudnnBackendGetAttribute");
    std::vector<int> notes(kMostNotes);
    ok(library, library.get(engine.raw(), kEngineNotes, kNumericalNote, kMostNotes, &count, notes.data()),
       "cudnnBackendGetAttribute");
    for (std::int64_t n = 0; n < count; ++n) {
      if (notes[n] == kNoteTensorCore || notes[n] == kNoteDownConvert) return true;
    }
    return false;
  }

  void propose(Raw graph, int mode, bool exact) {
    Descriptor heuristics(library, kHeuristics);
    heuristics.set(kHeurGraph, kDescriptor, graph).set(kHeurModeOf, kHeurMode, mode);
    if (heuristics.try_finalize() != 0) return;
    std::vector<Descriptor> room;
    std::vector<Raw> raws;
    for (int n = 0; n < kMostConfigs; ++n) {
      room.emplace_back(library, kConfig);
      raws.push_back(room.back().raw());
    }
    std::int64_t count = 0;
    if (library.get(heuristics.raw(), kHeurResults, kDescriptor, kMostConfigs, &count, raws.data()) != 0)
      return;
    for (std::int64_t n = 0; n < count; ++n) {
      if (!exact || !rounds_operands(room[n])) configs.push_back(std::move(room[n]));
    }
  }
};

Convolution::Convolution(Device& device, const ConvolutionSpec& spec)
    : parts_(new Parts(dnn(spec.library), device)) {
  Parts& p = *parts_;
  device.use();
  p.handle = handle_of(p.library, device);
  p.has_bias = spec.has_bias;
  p.has_residual = spec.has_residual;
  const int type = type_of(spec.dtype);
  const auto space = static_cast<std::int64_t>(spec.strides.size());
  Descriptor conv(p.library, kConvolution);
  conv.set(kConvPrecision, kDataType, kFloat)
      .set(kConvModeOf, kConvMode, kCrossCorrelation)
      .set(kConvSpatialDims, kInt64, space)
      .set_all(kConvDilations, kInt64, spec.dilations)
      .set_all(kConvStrides, kInt64, spec.strides)
      .set_all(kConvPrePads, kInt64, spec.pads_begin)
      .set_all(kConvPostPads, kInt64, spec.pads_end)
      .finalize();
  const int steps = spec.has_bias + spec.has_residual + spec.relu;
  int done = 0;
  std::int64_t next = kIdFirstVirtual;
  // The result of a step: the last one is y, the others stay in registers as float32.
  const auto result = [&] {
    const bool last = done++ == steps;
    return last ? p.tensor(kIdY, type, spec.y, spec.y_strides, false)
                : p.tensor(next++, kFloat, spec.y, spec.y_strides, true);
  };
  Raw value = result();
  Descriptor forward(p.library, kForwardOperation);
  forward.set(kForwardConv, kDescriptor, conv.raw())
      .set(kForwardX, kDescriptor, p.tensor(kIdX, type, spec.x, spec.x_strides, false))
      .set(kForwardW, kDescriptor, p.tensor(kIdW, type, spec.w, spec.w_strides, false))
      .set(kForwardY, kDescriptor, value)
      .set(kForwardAlpha, kDouble, 1.0)
      .set(kForwardBeta, kDouble, 0.0)
      .finalize();
  p.keep(std::move(conv));
  std::vector<Raw> operations = {p.keep(std::move(forward))};
  const auto apply = [&](int mode, Raw other) {
    const Raw after = result();
    operations.push_back(p.pointwise(mode, value, other, after));
    value = after;
  };
  if (spec.has_bias) {
    Dims dims(spec.y.size(), 1), strides(spec.y.size(), spec.y[1]);
    dims[1] = spec.y[1];
    strides[1] = 1;
    apply(kAdd, p.tensor(kIdBias, type, dims, strides, false));
  }
  if (spec.has_residual) apply(kAdd, p.tensor(kIdResidual, type, spec.y, spec.y_strides, false));
  if (spec.relu) apply(kRelu, nullptr);
  Descriptor graph(p.library, kGraph);
  graph.set_all(kGraphOps, kDescriptor, operations).set(kGraphHandle, kHandleType, p.handle);
  if (graph.try_finalize() != 0) throw Unsupported("cuDNN refuses the operation graph of a convolution");
  for (const int mode : {3, 1, 2}) p.propose(graph.raw(), mode, spec.dtype == "float32");  // A, B, fallback
  p.keep(std::move(graph));
  if (p.configs.empty()) throw Unsupported("cuDNN has no engine for a convolution");
}

Convolution::~Convolution() = default;

std::size_t Convolution::candidates() const { return parts_->configs.size(); }

std::int64_t Convolution::prepare(std::size_t candidate) {
  Parts& p = *parts_;
  p.device.use();
  auto found = p.plans.find(candidate);
  if (found == p.plans.end()) {
    Descriptor plan(p.library, kPlan);
    plan.set(kPlanHandle, kHandleType, p.handle).set(kPlanConfig, kDescriptor, p.configs.at(candidate).raw());
    if (plan.try_finalize() != 0) return -1;
    found = p.plans.emplace(candidate, std::move(plan)).first;
  }
  std::int64_t bytes = 0, count = 0;
  ok(p.library, p.library.get(found->second.raw(), kPlanWorkspace, kInt64, 1, &count, &bytes),
     "cudnnBackendGetAttribute");
  return bytes;
}

void Convolution::enqueue(const Stream& stream, std::size_t candidate, Address x, Address w, Address bias,
                          Address residual, Address y, Address workspace) const {
  Parts& p = *parts_;
  p.device.use();
  std::vector<std::int64_t> ids = {kIdX, kIdW, kIdY};
  std::vector<Address> addresses = {x, w, y};
  if (p.has_bias) ids.push_back(kIdBias), addresses.push_back(bias);
  if (p.has_residual) ids.push_back(kIdResidual), addresses.push_back(residual);
  Descriptor pack(p.library, kPack);
  pack.set_all(kPackIds, kInt64, ids)
      .set_all(kPackPointers, kPointer, addresses)
      .set(kPackWorkspace, kPointer, workspace);
  pack.finalize();
  ok(p.library, p.library.set_stream(p.handle, stream.handle()), "cudnnSetStream");
  ok(p.library, p.library.execute(p.handle, p.plans.at(candidate).raw(), pack.raw()), "cudnnBackendExecute");
}

}  // namespace npu::cuda
