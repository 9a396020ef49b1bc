#include "cuda/dnn.h"

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "cuda/library.h"

namespace npu::cuda {
namespace {

using Handle = struct DnnTag*;
using Raw = DnnGraph::Raw;

// What is used of cuDNN's backend; numbers are those of its published interface.
enum Kind {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kConfig = 3,
  kHeuristics = 4,
  kPlan = 5,
  kKnobChoice = 7,
  kForwardOperation = 10,
  kWeightsGradientOperation = 11,
  kDataGradientOperation = 12,
  kPointwiseOperation = 13,
  kGraph = 15,
  kPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kMatmulOperation = 19,
  kReduction = 21,
  kReductionOperation = 22
};
enum Type {
  kHandleType = 0,
  kDataType = 1,
  kBool = 2,
  kInt64 = 3,
  kFloat = 4,
  kDouble = 5,
  kPointer = 6,
  kConvMode = 7,
  kHeurMode = 8,
  kKnobType = 9,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kReductionOperator = 18
};
enum Attribute {
  kPointwiseModeOf = 0,
  kPointwisePrecision = 1,
  kPointwiseUpper = 4,
  kPointwiseAxis = 9,
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
  kConfigKnobs = 302,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kKnobTypeOf = 600,
  kKnobValue = 601,
  kForward = 700,  // six attributes of each direction, in one order (ConvolutionPart)
  kDataGradient = 706,
  kWeightsGradient = 712,
  kPointwiseDesc = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kPointwiseT = 758,
  kGraphHandle = 800,
  kGraphOps = 801,
  kTensorAlignment = 900,
  kTensorType = 901,
  kTensorDims = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorVirtual = 907,
  kTensorByValue = 908,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineIndex = 1301,
  kEngineNotes = 1303,
  kMatmulPrecision = 1500,
  kMatmulA = 1520,
  kMatmulB = 1521,
  kMatmulY = 1522,
  kMatmulDesc = 1523,
  kReductionKind = 1600,
  kReductionPrecision = 1601,
  kReductionX = 1610,
  kReductionY = 1611,
  kReductionDesc = 1612,
};
// Attributes of the operation of any direction, counted from its first.
enum ConvolutionPart {
  kAlpha = 0,
  kBeta = 1,
  kConvolutionOf = 2,
  kWeightsOf = 3,
  kImagesOf = 4,
  kResultOf = 5
};
constexpr int kFloatType = static_cast<int>(DnnType::kFloat);
constexpr int kCrossCorrelation = 1;
constexpr int kNoteTensorCore = 0, kNoteDownConvert = 1, kNoteReducedSums = 2, kNoteUnrepeatable = 4,
              kNoteWinograd4 = 6, kNoteWinograd6 = 7, kNoteWinograd13 = 8;
constexpr int kMostConfigs = 64, kMostNotes = 16, kMostKnobs = 64;
constexpr std::int64_t kFirstUnnamed = 1000;
constexpr std::int64_t kShortSum = 256;  // terms that sums of fewer bits hold as well as the result does

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
  // As many values of an attribute as it has, `most` at the most; descriptors are filled in place.
  template <typename Value>
  std::size_t get(Attribute attribute, Type type, std::vector<Value>& values) const {
    std::int64_t count = 0;
    ok(library_,
       library_.get(raw_, attribute, type, static_cast<std::int64_t>(values.size()), &count, values.data()),
       "cudnnBackendGetAttribute");
    return static_cast<std::size_t>(std::min<std::int64_t>(count, static_cast<std::int64_t>(values.size())));
  }

 private:
  const Dnn& library_;
  Raw raw_ = nullptr;
};

Handle handle_of(const Dnn& library, Device& device) {
  static std::mutex mutex;
  static std::map<int, Handle> handles;
  const std::scoped_lock lock(mutex);
  Handle& handle = handles[device.index()];
  if (handle == nullptr) ok(library, library.create(&handle), "cudnnCreate");
  return handle;
}

// Empty descriptors for cuDNN to fill.
struct Room {
  Room(const Dnn& library, Kind kind, int count) {
    for (int n = 0; n < count; ++n) {
      made.emplace_back(library, kind);
      raws.push_back(made.back().raw());
    }
  }
  std::vector<Descriptor> made;
  std::vector<Raw> raws;
};

}  // namespace

DnnType dnn_type(const std::string& dtype) {
  static const std::map<std::string, DnnType> types = {
      {"float32", DnnType::kFloat}, {"float16", DnnType::kHalf}, {"bfloat16", DnnType::kBfloat}};
  const auto found = types.find(dtype);
  if (found == types.end()) throw Unsupported("cuDNN operations of " + dtype + " are not implemented");
  return found->second;
}

struct DnnGraph::Parts {
  Parts(const Dnn& dnn, Device& on) : library(dnn), device(on) {}

  const Dnn& library;
  Device& device;
  Handle handle = nullptr;
  std::vector<Descriptor> owned;    // tensors, operations and the graph
  std::vector<Raw> operations;      // in their order
  std::vector<Descriptor> configs;  // one for each candidate
  std::map<std::size_t, Descriptor> plans;
  std::deque<std::pair<std::int64_t, float>> numbers;  // addresses stay
  std::int64_t next = kFirstUnnamed;

  Raw keep(Descriptor made) {
    owned.push_back(std::move(made));
    return owned.back().raw();
  }

  Raw tensor(std::int64_t id, DnnType type, const Dims& dims, const Dims& strides, bool is_virtual,
             bool by_value) {
    Descriptor made(library, kTensor);
    made.set(kTensorId, kInt64, id)
        .set(kTensorType, kDataType, static_cast<int>(type))
        .set_all(kTensorDims, kInt64, dims)
        .set_all(kTensorStrides, kInt64, strides)
        .set(kTensorAlignment, kInt64, std::int64_t{16})
        .set(kTensorVirtual, kBool, is_virtual);
    if (by_value) made.set(kTensorByValue, kBool, by_value);
    made.finalize();
    return keep(std::move(made));
  }

  // The engine of a configuration.
  Descriptor engine_of(const Descriptor& config) const {
    Room room(library, kEngine, 1);
    config.get(kConfigEngine, kDescriptor, room.raws);
    return std::move(room.made.front());
  }

  // Whether an engine has one of these notes.
  bool is_noted(const Descriptor& config, const std::set<int>& unwanted) const {
    const Descriptor engine = engine_of(config);
    std::vector<int> notes(kMostNotes);
    const std::size_t count = engine.get(kEngineNotes, kNumericalNote, notes);
    return std::any_of(notes.begin(), notes.begin() + static_cast<std::ptrdiff_t>(count),
                       [&](int note) { return unwanted.contains(note); });
  }

  void propose(Raw graph, int mode, const std::set<int>& unwanted) {
    Descriptor heuristics(library, kHeuristics);
    heuristics.set(kHeurGraph, kDescriptor, graph).set(kHeurModeOf, kHeurMode, mode);
    if (heuristics.try_finalize() != 0) return;
    Room room(library, kConfig, kMostConfigs);
    std::int64_t count = 0;
    if (library.get(heuristics.raw(), kHeurResults, kDescriptor, kMostConfigs, &count, room.raws.data()) != 0)
      return;
    for (std::int64_t n = 0; n < count; ++n) {
      if (!is_noted(room.made[n], unwanted)) configs.push_back(std::move(room.made[n]));
    }
  }
};

DnnGraph::DnnGraph(const std::string& library, Device& device) : parts_(new Parts(dnn(library), device)) {
  device.use();
  parts_->handle = handle_of(parts_->library, device);
}

DnnGraph::~DnnGraph() = default;

Raw DnnGraph::tensor(std::int64_t id, DnnType type, const Dims& dims, const Dims& strides) {
  return parts_->tensor(id, type, dims, strides, false, false);
}

Raw DnnGraph::between(DnnType type, const Dims& dims, const Dims& strides) {
  return parts_->tensor(parts_->next++, type, dims, strides, true, false);
}

Raw DnnGraph::number(float value, std::size_t rank) {
  parts_->numbers.emplace_back(parts_->next, value);
  return parts_->tensor(parts_->next++, DnnType::kFloat, Dims(rank, 1), Dims(rank, 1), false, true);
}

void DnnGraph::pointwise(const PointwiseSpec& spec, Raw x, Raw other, Raw condition, Raw y) {
  Parts& p = *parts_;
  Descriptor described(p.library, kPointwise);
  described.set(kPointwiseModeOf, kPointwiseMode, static_cast<int>(spec.mode))
      .set(kPointwisePrecision, kDataType, static_cast<int>(spec.compute));
  if (spec.axis >= 0) described.set(kPointwiseAxis, kInt64, spec.axis);
  if (spec.upper >= 0) described.set(kPointwiseUpper, kDouble, spec.upper);
  described.finalize();
  Descriptor operation(p.library, kPointwiseOperation);
  operation.set(kPointwiseDesc, kDescriptor, described.raw()).set(kPointwiseX, kDescriptor, x);
  if (other != nullptr) operation.set(kPointwiseB, kDescriptor, other);
  if (condition != nullptr) operation.set(kPointwiseT, kDescriptor, condition);
  operation.set(kPointwiseY, kDescriptor, y).finalize();
  p.keep(std::move(described));
  p.operations.push_back(p.keep(std::move(operation)));
}

void DnnGraph::product(Raw a, Raw b, Raw y) {
  Parts& p = *parts_;
  Descriptor described(p.library, kMatmul);
  described.set(kMatmulPrecision, kDataType, kFloatType).finalize();
  Descriptor operation(p.library, kMatmulOperation);
  operation.set(kMatmulA, kDescriptor, a)
      .set(kMatmulB, kDescriptor, b)
      .set(kMatmulY, kDescriptor, y)
      .set(kMatmulDesc, kDescriptor, described.raw())
      .finalize();
  p.keep(std::move(described));
  p.operations.push_back(p.keep(std::move(operation)));
}

void DnnGraph::reduction(Reduction kind, Raw x, Raw y) {
  Parts& p = *parts_;
  Descriptor described(p.library, kReduction);
  described.set(kReductionPrecision, kDataType, kFloatType)
      .set(kReductionKind, kReductionOperator, static_cast<int>(kind))
      .finalize();
  Descriptor operation(p.library, kReductionOperation);
  operation.set(kReductionX, kDescriptor, x)
      .set(kReductionY, kDescriptor, y)
      .set(kReductionDesc, kDescriptor, described.raw())
      .finalize();
  p.keep(std::move(described));
  p.operations.push_back(p.keep(std::move(operation)));
}

void DnnGraph::convolution(Direction direction, Raw x, Raw w, Raw y, const Dims& strides,
                           const Dims& dilations, const Dims& pads_begin, const Dims& pads_end) {
  static const std::map<Direction, std::pair<Kind, int>> kForms = {
      {Direction::kForward, {kForwardOperation, kForward}},
      {Direction::kData, {kDataGradientOperation, kDataGradient}},
      {Direction::kWeights, {kWeightsGradientOperation, kWeightsGradient}},
  };
  Parts& p = *parts_;
  Descriptor described(p.library, kConvolution);
  described.set(kConvPrecision, kDataType, kFloatType)
      .set(kConvModeOf, kConvMode, kCrossCorrelation)
      .set(kConvSpatialDims, kInt64, static_cast<std::int64_t>(strides.size()))
      .set_all(kConvDilations, kInt64, dilations)
      .set_all(kConvStrides, kInt64, strides)
      .set_all(kConvPrePads, kInt64, pads_begin)
      .set_all(kConvPostPads, kInt64, pads_end)
      .finalize();
  const auto& [kind, first] = kForms.at(direction);
  const auto at = [first = first](int part) { return static_cast<Attribute>(first + part); };
  Descriptor operation(p.library, kind);
  operation.set(at(kConvolutionOf), kDescriptor, described.raw())
      .set(at(kWeightsOf), kDescriptor, w)
      .set(at(kImagesOf), kDescriptor, x)
      .set(at(kResultOf), kDescriptor, y)
      .set(at(kAlpha), kFloat, 1.0f)
      .set(at(kBeta), kFloat, 0.0f);
  if (operation.try_finalize() != 0) throw Unsupported("cuDNN refuses the shapes of a convolution");
  p.keep(std::move(described));
  p.operations.push_back(p.keep(std::move(operation)));
}

void DnnGraph::finish(bool exact, std::int64_t terms, const std::string& what) {
  Parts& p = *parts_;
  Descriptor graph(p.library, kGraph);
  graph.set_all(kGraphOps, kDescriptor, p.operations).set(kGraphHandle, kHandleType, p.handle);
  if (graph.try_finalize() != 0) throw Unsupported("cuDNN refuses the operation graph of " + what);
  std::set<int> unwanted = {kNoteUnrepeatable, kNoteWinograd4, kNoteWinograd6, kNoteWinograd13};
  if (terms > kShortSum) unwanted.insert(kNoteReducedSums);
  if (exact) unwanted.insert({kNoteTensorCore, kNoteDownConvert});
  for (const int mode : {3, 1, 2}) p.propose(graph.raw(), mode, unwanted);  // A, B, fallback
  p.keep(std::move(graph));
  if (p.configs.empty()) throw Unsupported("cuDNN has no engine for " + what);
}

std::size_t DnnGraph::candidates() const { return parts_->configs.size(); }

std::string DnnGraph::describe(std::size_t candidate) const {
  const Parts& p = *parts_;
  const Descriptor& config = p.configs.at(candidate);
  std::vector<std::int64_t> index(1);
  p.engine_of(config).get(kEngineIndex, kInt64, index);
  std::string text = std::to_string(index.front());
  Room room(p.library, kKnobChoice, kMostKnobs);
  const std::size_t count = config.get(kConfigKnobs, kDescriptor, room.raws);
  for (std::size_t n = 0; n < count; ++n) {
    std::vector<int> type(1);
    std::vector<std::int64_t> value(1);
    room.made[n].get(kKnobTypeOf, kKnobType, type);
    room.made[n].get(kKnobValue, kInt64, value);
    text += " " + std::to_string(type.front()) + "=" + std::to_string(value.front());
  }
  return text;
}

std::int64_t DnnGraph::prepare(std::size_t candidate) {
  Parts& p = *parts_;
  p.device.use();
  auto found = p.plans.find(candidate);
  if (found == p.plans.end()) {
    Descriptor plan(p.library, kPlan);
    plan.set(kPlanHandle, kHandleType, p.handle).set(kPlanConfig, kDescriptor, p.configs.at(candidate).raw());
    if (plan.try_finalize() != 0) return -1;
    found = p.plans.emplace(candidate, std::move(plan)).first;
  }
  std::vector<std::int64_t> bytes(1);
  found->second.get(kPlanWorkspace, kInt64, bytes);
  return bytes.front();
}

void DnnGraph::enqueue(const Stream& stream, std::size_t candidate,
                       const std::vector<std::pair<std::int64_t, Address>>& operands,
                       Address workspace) const {
  Parts& p = *parts_;
  p.device.use();
  std::vector<std::int64_t> ids;
  std::vector<Address> addresses;
  for (const auto& [id, address] : operands) ids.push_back(id), addresses.push_back(address);
  for (const auto& [id, value] : p.numbers) {
    ids.push_back(id);
    addresses.push_back(reinterpret_cast<Address>(&value));
  }
  Descriptor pack(p.library, kPack);
  pack.set_all(kPackIds, kInt64, ids)
      .set_all(kPackPointers, kPointer, addresses)
      .set(kPackWorkspace, kPointer, workspace);
  pack.finalize();
  ok(p.library, p.library.set_stream(p.handle, stream.handle()), "cudnnSetStream");
  ok(p.library, p.library.execute(p.handle, p.plans.at(candidate).raw(), pack.raw()), "cudnnBackendExecute");
}

}  // namespace npu::cuda
