// Matrix products with few rows or terms.
#include <limits>
#include <optional>

#include "core/parallel.h"
#include "core/processor.h"
#include "product/lower.h"
#include "product/narrow.h"
#include "runtime/kernel_step.h"

namespace npu {

namespace product {

const NarrowKernels* narrow(DType type) {
  return for_machine(type, [&]<Vectors kVectors>() { return narrow_for<kVectors>(type); });
}

}  // namespace product

namespace {

using product::NarrowFn;
using product::NarrowKernels;
using product::NarrowOperands;
using product::NarrowProblem;

constexpr double kCycles = 2;  // of an element of the large operand

struct Params {
  NarrowProblem problem{};
  NarrowFn run = nullptr;
  std::int64_t units = 0, grain = 1;  // columns or rows that the threads share
};

class BoundNarrow : public BoundStep {
 public:
  explicit BoundNarrow(const Params& params) : params_(params) {}

  void run(RunState&) override {
    const NarrowOperands operands{a, b, bias, y};
    parallel_for(params_.units, params_.grain, [&](std::int64_t first, std::int64_t last) {
      params_.run(params_.problem, operands, first, last);
    });
  }

  void* a = nullptr;
  void* b = nullptr;
  void* bias = nullptr;
  void* y = nullptr;

 private:
  const Params& params_;
};

using NarrowStep = KernelStep<BoundNarrow, Params>;

bool is_plain(const Lowering& low) {
  const Attrs& attrs = low.attrs();
  const bool has_bias = attrs.flag("has_bias");
  const std::vector<std::string> post_ops = attrs.texts("post_ops");
  const DType type = low.output(0).dtype;
  for (std::size_t i = 0; i < low.input_count(); ++i) {
    if (low.input(i).dtype != type) return false;
  }
  return low.input_count() == (has_bias ? 3u : 2u) && (!has_bias || low.input(2).contiguous()) &&
         !attrs.flag("has_weight_scales") && !attrs.has("src_scale") && !attrs.has("dst_scale") &&
         (post_ops.empty() || (post_ops.size() == 1 && post_ops[0] == "relu"));
}

NarrowFn kernel_of(const NarrowKernels& kernels, const Matrix& a, const Matrix& b, const Matrix& y) {
  const bool few_rows = y.dims[0] <= product::kNarrow;
  if (few_rows && b.strides[0] == 1 && a.strides[1] == 1) return kernels.dots;
  if (few_rows && b.strides[1] == 1) return kernels.rows;
  return a.dims[1] <= product::kNarrow && b.strides[1] == 1 ? kernels.outer : nullptr;
}

std::optional<Params> make_params(const Lowering& low, const Matrix& a, const Matrix& b, const Matrix& y) {
  const NarrowKernels* kernels = product::narrow(low.output(0).dtype);
  if (!kernels) low.reject("products with few rows or terms need AVX2, for bfloat16 its products of AVX-512");
  if (y.dims.size() != 2 || a.dims.size() != 2 || b.dims.size() != 2 || y.strides[1] != 1 || a.dims[1] == 0 ||
      y.dims[0] == 0 || y.dims[1] == 0 || !is_plain(low)) {
    return std::nullopt;
  }
  Params params;
  params.run = kernel_of(*kernels, a, b, y);
  const bool by_rows = params.run == kernels->outer;
  const std::int64_t large = by_rows ? y.dims[0] * y.dims[1] : b.dims[0] * b.dims[1];
  if (!params.run) return std::nullopt;
  const bool clips = !low.attrs().texts("post_ops").empty();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool leaves_caches = y.dims[0] * y.dims[1] * 4 >= loops().l2_bytes;
  params.problem = {y.dims[0],
                    y.dims[1],
                    a.dims[1],
                    a.strides[0],
                    a.strides[1],
                    b.strides[0],
                    b.strides[1],
                    y.strides[0],
                    clips ? 0.0f : -kInfinity,
                    kInfinity,
                    leaves_caches && low.output_of(low.output(0)) >= 0};
  params.units = by_rows ? y.dims[0] : y.dims[1];
  params.grain = grain(kCycles, large / params.units);
  return params;
}

}  // namespace

void lower_narrow_product(Lowering& low, const Matrix& a, const Matrix& b, const Matrix& y) {
  const std::optional<Params> params = make_params(low, a, b, y);
  if (!params)
    low.reject("it has more rows and terms, other types, strides or post-operations than the kernel takes");
  const NarrowProblem& p = params->problem;
  low.describe(with_vectors("narrow"),
               (a.strides[1] == 1 ? "ab," : "ba,") + std::string(b.strides[1] == 1 ? "ab" : "ba"),
               2.0 * static_cast<double>(p.rows * p.columns) * static_cast<double>(p.depth));
  NarrowStep::Places places{{&BoundNarrow::a, low.at(low.input(0))},
                            {&BoundNarrow::b, low.at(low.input(1))},
                            {&BoundNarrow::y, low.at(low.output(0))}};
  if (low.attrs().flag("has_bias")) places.emplace_back(&BoundNarrow::bias, low.at(low.input(2)));
  low.emit(std::make_unique<NarrowStep>(*params, std::move(places)));
}

}  // namespace npu
