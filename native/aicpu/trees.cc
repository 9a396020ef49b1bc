// tree_ensemble: every tree takes each row from its root to a leaf; the leaves' weights are aggregated by
// target.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "aicpu/dispatch.h"
#include "core/parallel.h"

namespace npu::aicpu {
namespace {

// A node as it is stored: the child for rows that pass the test, the other one right behind it. A leaf is its
// own child.
struct Node {
  float threshold;
  std::uint32_t feature;  // and flags
  std::int32_t child;
  std::int32_t leaf;  // the first of its weights; they end where those of the next node begin
};
static_assert(sizeof(Node) == 16);

constexpr std::uint32_t kBranch = 1u << 28;
constexpr std::uint32_t kMissingPasses = 1u << 29;  // NaN passes the test
constexpr std::uint32_t kEquality = 1u << 30;       // the test is x == threshold, else x <= threshold
constexpr std::uint32_t kFeature = kBranch - 1;

constexpr std::int64_t kBlock = 64;  // rows at a time
constexpr int kLanes = 8;            // interleaved descents, to hide memory latency

struct Forest {
  const Node* nodes;
  const std::int32_t* roots;
  const std::int32_t* depths;
  const std::int32_t* targets;
  const float* weights;
  std::int64_t trees;
  bool plain;   // every test is x <= threshold, which NaN fails
  bool single;  // one target and one weight a leaf, which is its threshold; they are summed
};

inline std::int32_t next(const Node& node, float x, bool plain) {
  bool fails = !(x <= node.threshold);
  if (!plain) {
    if (node.feature & kEquality) fails = !(x == node.threshold);
    if (std::isnan(x)) fails = !(node.feature & kMissingPasses);
  }
  // Branch-free: the path of a row is unpredictable.
  return node.child +
         (static_cast<std::int32_t>(fails) & static_cast<std::int32_t>((node.feature / kBranch) & 1u));
}

using Lanes = std::array<const float*, kLanes>;

// Lane i descends from at[i] with the features rows[i].
template <bool plain>
inline void descend(const Node* nodes, std::int32_t depth, std::array<std::int32_t, kLanes>& at,
                    const Lanes& rows) {
  for (std::int32_t level = 0; level < depth; ++level) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const Node& node = nodes[at[lane]];
      at[lane] = next(node, rows[lane][node.feature & kFeature], plain);
    }
  }
}

enum class Aggregate { Sum, Min, Max };

inline void add_leaf(const Forest& forest, std::int32_t node, Aggregate how, double* scores) {
  if (forest.single) {
    *scores += forest.nodes[node].threshold;
    return;
  }
  const std::int32_t end = forest.nodes[node + 1].leaf;
  for (std::int32_t i = forest.nodes[node].leaf; i < end; ++i) {
    double& score = scores[forest.targets[i]];
    const double weight = forest.weights[i];
    if (how == Aggregate::Sum) {
      score += weight;
    } else if (how == Aggregate::Min) {
      score = std::min(score, weight);
    } else {
      score = std::max(score, weight);
    }
  }
}

// A few rows: lanes are trees.
template <bool plain>
void by_trees(const Forest& forest, const float* row, Aggregate how, double* scores) {
  Lanes rows;
  rows.fill(row);
  for (std::int64_t first = 0; first < forest.trees; first += kLanes) {
    const std::int64_t last = forest.trees - 1;
    const std::int64_t count = std::min<std::int64_t>(kLanes, forest.trees - first);
    std::array<std::int32_t, kLanes> at;
    std::int32_t depth = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::int64_t tree = std::min(first + lane, last);
      at[lane] = forest.roots[tree];
      depth = std::max(depth, forest.depths[tree]);
    }
    descend<plain>(forest.nodes, depth, at, rows);
    for (std::int64_t lane = 0; lane < count; ++lane) add_leaf(forest, at[lane], how, scores);
  }
}

// Many rows: lanes are rows, so that a tree stays in the cache. The last lanes repeat the last row.
template <bool plain>
void by_rows(const Forest& forest, const float* x, std::int64_t rows, std::int64_t features, Aggregate how,
             double* scores, std::int64_t targets) {
  const std::int64_t groups = (rows + kLanes - 1) / kLanes;
  std::array<Lanes, kBlock / kLanes> lanes;
  for (std::int64_t row = 0; row < groups * kLanes; ++row) {
    lanes[row / kLanes][row % kLanes] = x + std::min(row, rows - 1) * features;
  }
  for (std::int64_t tree = 0; tree < forest.trees; ++tree) {
    for (std::int64_t group = 0; group < groups; ++group) {
      std::array<std::int32_t, kLanes> at;
      at.fill(forest.roots[tree]);
      descend<plain>(forest.nodes, forest.depths[tree], at, lanes[group]);
      const std::int64_t first = group * kLanes, count = std::min<std::int64_t>(kLanes, rows - first);
      for (std::int64_t lane = 0; lane < count; ++lane) {
        add_leaf(forest, at[lane], how, scores + (first + lane) * targets);
      }
    }
  }
}

Status aggregate_of(const std::string& name, Aggregate& how, double& start) {
  how = name == "min" ? Aggregate::Min : name == "max" ? Aggregate::Max : Aggregate::Sum;
  start = how == Aggregate::Sum   ? 0.0
          : how == Aggregate::Min ? std::numeric_limits<double>::infinity()
                                  : -std::numeric_limits<double>::infinity();
  if (name != "sum" && name != "min" && name != "max")
    return Status::error("unknown aggregate '" + name + "'");
  return Status::ok();
}

// Inputs: x (rows, features), nodes (n + 1, 4), roots, depths, targets, weights. The operator has checked
// them.
Status tree_ensemble(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(6, 1));
  const Tensor& x = call.inputs[0];
  if (x.dtype != DType::Float32 || call.outputs[0].dtype != DType::Float32) return unsupported_type(x.dtype);
  Aggregate how{};
  double start = 0;
  NPU_RETURN_IF_ERROR(aggregate_of(call.attrs.text("aggregate", "sum"), how, start));
  const Forest forest{call.inputs[1].as<Node>(),         call.inputs[2].as<std::int32_t>(),
                      call.inputs[3].as<std::int32_t>(), call.inputs[4].as<std::int32_t>(),
                      call.inputs[5].as<float>(),        call.inputs[2].elements(),
                      call.attrs.flag("plain"),          call.attrs.flag("single")};
  const std::int64_t rows = x.dims[0], features = x.dims[1], targets = call.outputs[0].dims[1];
  std::int64_t steps = 1;
  for (std::int64_t tree = 0; tree < forest.trees; ++tree) steps += forest.depths[tree] + 1;
  const float* data = x.as<float>();
  float* y = call.outputs[0].as<float>();
  constexpr double kCycles = 4;  // of a step
  parallel_for(rows, grain(kCycles, steps), [&](std::int64_t lo, std::int64_t hi) {
    std::vector<double> scores(static_cast<std::size_t>(std::min(kBlock, hi - lo) * targets));
    for (std::int64_t first = lo; first < hi; first += kBlock) {
      const std::int64_t count = std::min(kBlock, hi - first);
      std::fill(scores.begin(), scores.end(), start);
      const float* from = data + first * features;
      if (count >= kLanes) {
        (forest.plain ? by_rows<true> : by_rows<false>)(forest, from, count, features, how, scores.data(),
                                                        targets);
      } else {
        for (std::int64_t row = 0; row < count; ++row) {
          (forest.plain ? by_trees<true> : by_trees<false>)(forest, from + row * features, how,
                                                            scores.data() + row * targets);
        }
      }
      std::copy_n(scores.begin(), count * targets, y + first * targets);
    }
  });
  return Status::ok();
}

NPU_AICPU_KERNEL("tree_ensemble", tree_ensemble);

}  // namespace
}  // namespace npu::aicpu
