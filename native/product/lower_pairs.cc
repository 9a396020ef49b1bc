// Bfloat16 products: which ones are ours, and their step.
#include <omp.h>

#include <optional>

#include "core/parallel.h"
#include "product/finish.h"
#include "product/lower.h"
#include "product/pairs.h"

namespace npu {
namespace {

using product::MultiplyPairsFn;
using product::Numbers;
using product::PairGrid;
using product::PairOperands;
using product::Problem;

// Which of the operands are float32; the others are bfloat16.
struct Types {
  bool bias = false, residual = false, factor = false, y = false;
};

struct Plan {
  Plan(MultiplyPairsFn multiply, const Problem& problem, const Types& types, std::int64_t threads)
      : multiply(multiply), grid(problem, threads), types(types), buffer_bytes(grid.scratch_bytes()) {}

  void run(const Addresses& at) const {
    const PairOperands whole{static_cast<const std::uint16_t*>(at.a),
                             static_cast<const std::uint16_t*>(at.b),
                             {at.bias, types.bias},
                             {at.residual, types.residual},
                             {at.factor, types.factor},
                             {at.y, types.y}};
    parallel_for(grid.parts(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        const Problem problem = grid.problem(part);
        const PairOperands own = grid.operands(part, whole);
        multiply(problem, own,
                 static_cast<char*>(at.buffers) + static_cast<std::size_t>(part) * buffer_bytes);
      }
    });
  }

  MultiplyPairsFn multiply;
  PairGrid grid;
  Types types;
  std::size_t buffer_bytes;
};

bool is_number(DType type) { return type == DType::Float32 || type == DType::BFloat16; }

bool is_of_pairs(const Lowering& low) {
  return low.input(0).dtype == DType::BFloat16 && low.input(1).dtype == DType::BFloat16 &&
         is_number(low.output(0).dtype) && (!low.attrs().flag("has_bias") || is_number(low.input(2).dtype));
}

Types types_of(const Lowering& low, const Finish& finish) {
  const auto is_float32 = [&](const std::optional<std::size_t>& input) {
    return input && low.input(*input).dtype == DType::Float32;
  };
  return {is_float32(finish.bias), is_float32(finish.residual), is_float32(finish.factor),
          low.output(0).dtype == DType::Float32};
}

// What the threads' second-level caches hold oneDNN multiplies as fast, and what is packed once faster; short
// sums and few rows or columns leave too little time between the ends of tiles and to pack. Measured.
constexpr double kLeastEfficiency = 0.9;
constexpr std::int64_t kCacheBytes = 1 << 20;

bool is_worthwhile(const PairGrid& grid, bool packs_once) {
  return !packs_once && grid.bytes() > grid.parts() * kCacheBytes && grid.efficiency() >= kLeastEfficiency;
}

}  // namespace

bool lower_pair_product(Lowering& low, const Matrix& a, const Matrix& b, const Matrix& y,
                        const std::vector<Matrix>& posts) {
  const MultiplyPairsFn multiply = product::multiply_pairs();
  const std::string algorithm = low.attrs().text("algorithm", "auto");
  if (!multiply || algorithm == "library" || !is_of_pairs(low) || !is_unscaled(low) ||
      !lie_in_lines(a, b, y)) {
    return false;
  }
  const std::optional<Finish> finish = read_finish(low, y, posts, is_number);
  if (!finish) return false;
  const Plan plan(multiply, problem_of(a, b, y, *finish), types_of(low, *finish), omp_get_max_threads());
  const bool is_asked_for = algorithm == "pairs";  // whatever the size
  const bool packs_once = low.is_constant(low.input(1)) || low.is_steady(low.input(1));
  if (!is_asked_for && !is_worthwhile(plan.grid, packs_once)) return false;
  low.describe("pairs:avx512_bf16", layout_of(a, b), flops_of(plan.grid.whole()));
  if (!low.building()) return true;
  const Places places(low, *finish, static_cast<std::size_t>(plan.grid.parts()) * plan.buffer_bytes);
  low.emit(std::make_unique<ProductStep<Plan>>(plan, places));
  return true;
}

}  // namespace npu
