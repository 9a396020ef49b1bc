// Matrix products that run by Strassen's algorithm: which ones, and their step.
#include "product/lower.h"

#include <omp.h>

#include <optional>

#include "core/parallel.h"
#include "product/finish.h"
#include "product/product.h"

namespace npu {
namespace {

using product::Grid;
using product::MultiplyFn;
using product::Operands;
using product::Problem;

struct Plan {
  Plan(MultiplyFn multiply, const Problem& problem, std::int64_t threads)
      : multiply(multiply), grid(problem, threads), buffer_floats((grid.scratch_floats() + 15) / 16 * 16) {}

  void run(const Addresses& at) const {
    const Operands whole{static_cast<const float*>(at.a),      static_cast<const float*>(at.b),
                         static_cast<const float*>(at.bias),   static_cast<const float*>(at.residual),
                         static_cast<const float*>(at.factor), static_cast<float*>(at.y)};
    parallel_for(grid.parts(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        const Problem problem = grid.problem(part);
        const Operands own = grid.operands(part, whole);
        multiply(problem, own, static_cast<float*>(at.buffers) + part * buffer_floats);
      }
    });
  }

  MultiplyFn multiply;
  Grid grid;
  std::int64_t buffer_floats;
};

bool is_float32(DType type) { return type == DType::Float32; }

bool is_of_float32(const Lowering& low) {
  for (std::size_t i = 0; i < (low.attrs().flag("has_bias") ? 3u : 2u); ++i) {
    if (!is_float32(low.input(i).dtype)) return false;
  }
  return is_float32(low.output(0).dtype);
}

// Packing takes a share of the time that shrinks as rows and columns grow, updates of the result one that
// shrinks with the depth.
constexpr double kLeastGain = 1.05;
constexpr double kLeastGainOverPacked = 1.085;  // oneDNN packs constants once
constexpr std::int64_t kLeastDepth = 512;

bool is_worthwhile(const Grid& grid, bool packs_once) {
  return grid.problem(0).depth >= kLeastDepth &&
         grid.gain() >= (packs_once ? kLeastGainOverPacked : kLeastGain);
}

}  // namespace

bool lower_product(Lowering& low, const Matrix& a, const Matrix& b, const Matrix& y,
                   const std::vector<Matrix>& posts) {
  const MultiplyFn multiply = product::multiply();
  const bool is_asked_for = low.attrs().text("algorithm", "auto") == "strassen";  // whatever the size
  if (!multiply || !(is_asked_for || low.may_save_arithmetic()) || !is_of_float32(low) || !is_unscaled(low) ||
      !lie_in_lines(a, b, y)) {
    return false;
  }
  const std::optional<Finish> finish = read_finish(low, y, posts, is_float32);
  if (!finish) return false;
  const Plan plan(multiply, problem_of(a, b, y, *finish), omp_get_max_threads());
  const bool packs_once = low.is_constant(low.input(1)) || low.is_steady(low.input(1));
  if (!is_asked_for && !is_worthwhile(plan.grid, packs_once)) return false;
  low.describe("strassen:avx512", layout_of(a, b), flops_of(plan.grid.whole()));
  if (!low.building()) return true;
  const Places places(low, *finish,
                      static_cast<std::size_t>(plan.grid.parts() * plan.buffer_floats) * sizeof(float));
  low.emit(std::make_unique<ProductStep<Plan>>(plan, places));
  return true;
}

}  // namespace npu
