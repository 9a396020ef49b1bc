// Operation graphs of cuDNN's backend: described tensor by tensor, run by one of the engines that cuDNN
// proposes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device.h"

namespace npu::cuda {

using Dims = std::vector<std::int64_t>;

// Numbers of cuDNN's published interface.
enum class DnnType { kFloat = 0, kHalf = 2, kInt32 = 4, kBfloat = 9, kBool = 11 };
enum class Pointwise {
  kAdd = 0,
  kMul = 1,
  kDiv = 6,
  kSub = 9,
  kExp = 13,
  kLog = 15,
  kRelu = 100,
  kTanh = 101,
  kSigmoid = 102,
  kGelu = 104,
  kSwish = 106,
  kGeluTanh = 107,
  kGreaterEqual = 303,
  kIndex = 501,
  kSelect = 601
};
// What a convolution computes: its result, or the gradient of its images or of its weights.
enum class Direction { kForward, kData, kWeights };
enum class Reduction { kSum = 0, kMax = 3 };

// float32, float16 or bfloat16; raises Unsupported for others.
DnnType dnn_type(const std::string& dtype);

struct PointwiseSpec {
  Pointwise mode;
  DnnType compute = DnnType::kFloat;
  std::int64_t axis = -1;  // of kIndex
  double upper = -1;       // of kRelu, unless negative
};

class DnnGraph {
 public:
  using Raw = void*;

  DnnGraph(const std::string& library, Device& device);
  ~DnnGraph();
  DnnGraph(const DnnGraph&) = delete;
  DnnGraph& operator=(const DnnGraph&) = delete;

  // Tensors by identities: what is in memory, what stays in registers, and a number given with each run.
  Raw tensor(std::int64_t id, DnnType type, const Dims& dims, const Dims& strides);
  Raw between(DnnType type, const Dims& dims, const Dims& strides);
  Raw number(float value, std::size_t rank);

  void pointwise(const PointwiseSpec& spec, Raw x, Raw other, Raw condition, Raw y);
  void product(Raw a, Raw b, Raw y);
  void reduction(Reduction kind, Raw x, Raw y);
  // Images, weights and result, or the gradients of those in their places.
  void convolution(Direction direction, Raw x, Raw w, Raw y, const Dims& strides, const Dims& dilations,
                   const Dims& pads_begin, const Dims& pads_end);

  // Ends the description. Engines whose results differ between runs, that add many terms in fewer bits than
  // float32 or transform large tiles are left out; `exact`: those that round float32 operands too. Raises
  // Unsupported, naming `what`, when cuDNN has no other.
  void finish(bool exact, std::int64_t terms, const std::string& what);

  std::size_t candidates() const;
  // An engine and its settings, which stay the same while the library's version does.
  std::string describe(std::size_t candidate) const;
  // Compiles a candidate; its workspace in bytes, or -1 when cuDNN cannot build it.
  std::int64_t prepare(std::size_t candidate);
  void enqueue(const Stream& stream, std::size_t candidate,
               const std::vector<std::pair<std::int64_t, Address>>& operands, Address workspace) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace npu::cuda
