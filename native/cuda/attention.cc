#include "cuda/attention.h"

#include <limits>
#include <utility>
#include <vector>

namespace npu::cuda {
namespace {

constexpr std::int64_t kQ = 1, kK = 2, kV = 3, kMask = 4, kY = 5, kSums = 6;

Dims dense(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (std::size_t n = dims.size() - 1; n > 0; --n) strides[n - 1] = strides[n] * dims[n];
  return strides;
}

}  // namespace

Attention::Attention(Device& device, const AttentionSpec& spec)
    : graph_(spec.library, device), has_mask_(!spec.mask_dtype.empty()), has_sums_(spec.has_sums) {
  using Raw = DnnGraph::Raw;
  const DnnType type = dnn_type(spec.dtype);
  const Dims scores = {spec.q[0], spec.q[1], spec.q[2], spec.k[2]},
             rows = {spec.q[0], spec.q[1], spec.q[2], 1};
  const auto wide = [&](const Dims& dims) { return graph_.between(DnnType::kFloat, dims, dense(dims)); };
  const auto step = [&](const PointwiseSpec& kind, Raw x, Raw other, const Dims& dims) {
    const Raw y = wide(dims);
    graph_.pointwise(kind, x, other, nullptr, y);
    return y;
  };
  const auto reduced = [&](Reduction kind, Raw x) {
    const Raw y = wide(rows);
    graph_.reduction(kind, x, y);
    return y;
  };
  const Dims turned = {spec.k[0], spec.k[1], spec.k[3], spec.k[2]},
             turned_strides = {spec.k_strides[0], spec.k_strides[1], spec.k_strides[3], spec.k_strides[2]};
  Raw value = wide(scores);
  graph_.product(graph_.tensor(kQ, type, spec.q, spec.q_strides),
                 graph_.tensor(kK, type, turned, turned_strides), value);
  value = step({Pointwise::kMul}, value, graph_.number(static_cast<float>(spec.scale), 4), scores);
  if (has_mask_) {
    const Raw mask = graph_.tensor(kMask, dnn_type(spec.mask_dtype), spec.mask, spec.mask_strides);
    value = step({Pointwise::kAdd}, value, mask, scores);
  }
  if (spec.causal) {
    const auto index = [&](std::int64_t axis) {
      const Raw y = graph_.between(DnnType::kInt32, scores, dense(scores));
      graph_.pointwise({Pointwise::kIndex, DnnType::kFloat, axis}, value, nullptr, nullptr, y);
      return y;
    };
    const Raw row = index(2), column = index(3), seen = graph_.between(DnnType::kBool, scores, dense(scores));
    graph_.pointwise({Pointwise::kGreaterEqual, DnnType::kBool}, row, column, nullptr, seen);
    const Raw masked = wide(scores);
    const Raw nothing = graph_.number(-std::numeric_limits<float>::infinity(), 4);
    graph_.pointwise({Pointwise::kSelect}, value, nothing, seen, masked);
    value = masked;
  }
  const Raw top = reduced(Reduction::kMax, value);
  const Raw powers = step({Pointwise::kExp}, step({Pointwise::kSub}, value, top, scores), nullptr, scores);
  const Raw total = reduced(Reduction::kSum, powers);
  const Raw logarithm = step({Pointwise::kLog}, total, nullptr, rows);
  const Raw sums = has_sums_ ? graph_.tensor(kSums, DnnType::kFloat, rows, dense(rows)) : wide(rows);
  graph_.pointwise({Pointwise::kAdd}, top, logarithm, nullptr, sums);
  const Raw weights = graph_.between(type, scores, dense(scores));
  graph_.pointwise({Pointwise::kDiv}, powers, total, nullptr, weights);
  graph_.product(weights, graph_.tensor(kV, type, spec.v, spec.v_strides),
                 graph_.tensor(kY, type, spec.y, spec.y_strides));
  graph_.finish(false, spec.k[2], "attention");
}

void Attention::enqueue(const Stream& stream, std::size_t candidate, Address q, Address k, Address v,
                        Address mask, Address y, Address sums, Address workspace) const {
  std::vector<std::pair<std::int64_t, Address>> operands = {{kQ, q}, {kK, k}, {kV, v}, {kY, y}};
  if (has_mask_) operands.emplace_back(kMask, mask);
  if (has_sums_) operands.emplace_back(kSums, sums);
  graph_.enqueue(stream, candidate, operands, workspace);
}

}  // namespace npu::cuda
