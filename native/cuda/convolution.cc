#include "cuda/convolution.h"

#include <functional>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "core/errors.h"

namespace npu::cuda {
namespace {

constexpr std::int64_t kX = 1, kW = 2, kBias = 3, kResidual = 4, kY = 5;

PointwiseSpec activation_of(const std::string& name) {
  static const std::map<std::string, PointwiseSpec> known = {
      {"relu", {Pointwise::kRelu}},          {"relu6", {Pointwise::kRelu, DnnType::kFloat, -1, 6.0}},
      {"sigmoid", {Pointwise::kSigmoid}},    {"tanh", {Pointwise::kTanh}},
      {"swish", {Pointwise::kSwish}},        {"gelu_erf", {Pointwise::kGelu}},
      {"gelu_tanh", {Pointwise::kGeluTanh}},
  };
  const auto found = known.find(name);
  if (found == known.end()) throw Unsupported("cuDNN convolutions have no activation " + name);
  return found->second;
}

// How many products a sum has.
std::int64_t terms_of(const ConvolutionSpec& spec) {
  const auto product = [](auto begin, auto end) {
    return std::accumulate(begin, end, std::int64_t{1}, std::multiplies<>());
  };
  if (spec.direction == Direction::kWeights) return spec.y[0] * product(spec.y.begin() + 2, spec.y.end());
  const std::int64_t taps = product(spec.w.begin() + 2, spec.w.end());
  if (spec.direction == Direction::kForward) return spec.w[1] * taps;
  return spec.w[0] * spec.w[1] / spec.x[1] * taps;
}

}  // namespace

Direction direction_of(const std::string& name) {
  static const std::map<std::string, Direction> known = {
      {"forward", Direction::kForward}, {"data", Direction::kData}, {"weights", Direction::kWeights}};
  const auto found = known.find(name);
  if (found == known.end()) throw InvalidArgument("convolutions have no direction " + name);
  return found->second;
}

Convolution::Convolution(Device& device, const ConvolutionSpec& spec)
    : graph_(spec.library, device), has_bias_(spec.has_bias), has_residual_(spec.has_residual) {
  const DnnType type = dnn_type(spec.dtype), result_type = dnn_type(spec.result);
  const Direction direction = spec.direction;
  const int steps = spec.has_bias + spec.has_residual + !spec.activation.empty();
  if (direction != Direction::kForward && steps > 0) throw Unsupported("gradients have no epilogue");
  int done = 0;
  // The result of a step: the last one is y, the others stay in registers as float32.
  const auto result = [&] {
    return done++ == steps ? graph_.tensor(kY, result_type, spec.y, spec.y_strides)
                           : graph_.between(DnnType::kFloat, spec.y, spec.y_strides);
  };
  const auto typed = [&](Direction computed) { return direction == computed ? result_type : type; };
  DnnGraph::Raw value =
      direction == Direction::kForward ? result() : graph_.tensor(kY, type, spec.y, spec.y_strides);
  graph_.convolution(direction, graph_.tensor(kX, typed(Direction::kData), spec.x, spec.x_strides),
                     graph_.tensor(kW, typed(Direction::kWeights), spec.w, spec.w_strides), value,
                     spec.strides, spec.dilations, spec.pads_begin, spec.pads_end);
  const auto apply = [&](const PointwiseSpec& step, DnnGraph::Raw other) {
    const DnnGraph::Raw after = result();
    graph_.pointwise(step, value, other, nullptr, after);
    value = after;
  };
  if (spec.has_bias) {
    Dims dims(spec.y.size(), 1), strides(spec.y.size(), spec.y[1]);
    dims[1] = spec.y[1];
    strides[1] = 1;
    apply({Pointwise::kAdd}, graph_.tensor(kBias, type, dims, strides));
  }
  if (spec.has_residual) apply({Pointwise::kAdd}, graph_.tensor(kResidual, type, spec.y, spec.y_strides));
  if (!spec.activation.empty()) apply(activation_of(spec.activation), nullptr);
  graph_.finish(spec.dtype == "float32", terms_of(spec), "a convolution or its gradient");
}

void Convolution::enqueue(const Stream& stream, std::size_t candidate, Address x, Address w, Address bias,
                          Address residual, Address y, Address workspace) const {
  std::vector<std::pair<std::int64_t, Address>> operands = {{kX, x}, {kW, w}, {kY, y}};
  if (has_bias_) operands.emplace_back(kBias, bias);
  if (has_residual_) operands.emplace_back(kResidual, residual);
  graph_.enqueue(stream, candidate, operands, workspace);
}

}  // namespace npu::cuda
