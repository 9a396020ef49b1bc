// Matrix products by Strassen's algorithm.
#include "product/lower.h"

#include <omp.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/parallel.h"
#include "product/product.h"
#include "runtime/kernel_step.h"

namespace npu {
namespace {

constexpr std::int64_t kMostParts = 1 << 12;  // of a product, each with memory of its own

using product::Activation;
using product::Epilogue;
using product::Grid;
using product::MultiplyFn;
using product::Operands;
using product::Problem;

struct Params {
  Params(MultiplyFn multiply, const Grid& parts)
      : run(multiply), grid(parts), buffer_floats((grid.scratch_floats() + 15) / 16 * 16) {}

  MultiplyFn run;
  Grid grid;
  std::int64_t buffer_floats;
};

class BoundProduct : public BoundStep {
 public:
  explicit BoundProduct(const Params& params) : params_(params) {}

  void run(RunState&) override {
    const Operands whole{static_cast<const float*>(a),      static_cast<const float*>(b),
                         static_cast<const float*>(bias),   static_cast<const float*>(residual),
                         static_cast<const float*>(factor), static_cast<float*>(y)};
    parallel_for(params_.grid.parts(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        const Problem problem = params_.grid.problem(part);
        const Operands own = params_.grid.operands(part, whole);
        params_.run(problem, own, static_cast<float*>(buffers) + part * params_.buffer_floats);
      }
    });
  }

  void* a = nullptr;
  void* b = nullptr;
  void* bias = nullptr;
  void* residual = nullptr;
  void* factor = nullptr;
  void* y = nullptr;
  void* buffers = nullptr;

 private:
  const Params& params_;
};

using ProductStep = KernelStep<BoundProduct, Params>;

// What follows the product: a row and a matrix that are added at most, one that is multiplied, an activation.
struct Finish {
  Epilogue epilogue;
  bool accumulates = false;
  std::optional<std::size_t> bias, residual;  // the inputs that are added
  std::optional<std::size_t> factor;          // the one that is multiplied
};

bool read_clip(std::string_view text, Epilogue& epilogue) {
  const std::size_t first = text.find(','), second = text.find(',', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return false;
  const char* end = text.data() + text.size();
  return std::from_chars(text.data() + first + 1, end, epilogue.low).ec == std::errc() &&
         std::from_chars(text.data() + second + 1, end, epilogue.high).ec == std::errc();
}

bool read_activation(std::string_view text, Epilogue& epilogue) {
  if (text == "gelu_erf") {
    epilogue.activation = Activation::GeluErf;
  } else if (text == "gelu_tanh") {
    epilogue.activation = Activation::GeluTanh;
  } else if (text == "relu") {
    epilogue.activation = Activation::Clip;
    epilogue.low = 0.0f;
  } else if (text.substr(0, text.find(',')) == "clip" && read_clip(text, epilogue)) {
    epilogue.activation = Activation::Clip;
  } else {
    return false;
  }
  return true;
}

bool is_row(const Matrix& m, const Matrix& y) { return m.dims == Dims{1, y.dims[1]} && m.strides[1] == 1; }

bool lies_like(const Matrix& m, const Matrix& y) { return m.dims == y.dims && m.strides == y.strides; }

std::optional<Finish> read_finish(const Lowering& low, const Matrix& y, const std::vector<Matrix>& posts) {
  Finish finish;
  const std::size_t first = low.attrs().flag("has_bias") ? 3 : 2;
  if (first == 3) finish.bias = 2;
  std::size_t next = 0;
  for (const std::string& text : low.attrs().texts("post_ops")) {
    if (finish.epilogue.activation != Activation::None) return std::nullopt;
    const bool summed = finish.accumulates || finish.residual;
    const bool reads = next < posts.size() && low.input(first + next).dtype == DType::Float32;
    const bool adds = text == "add" && reads && !finish.factor;
    if (text == "sum" && !summed && !finish.factor) {
      finish.accumulates = true;
    } else if (adds && !finish.bias && is_row(posts[next], y)) {
      finish.bias = first + next++;
    } else if (adds && !summed && lies_like(posts[next], y)) {
      finish.residual = first + next++;
    } else if (text == "mul" && reads && !finish.factor && lies_like(posts[next], y)) {
      finish.factor = first + next++;
    } else if (!read_activation(text, finish.epilogue)) {
      return std::nullopt;
    }
  }
  finish.epilogue.has_bias = finish.bias.has_value();
  finish.epilogue.has_residual = finish.residual.has_value();
  finish.epilogue.has_factor = finish.factor.has_value();
  return next == posts.size() ? std::optional(finish) : std::nullopt;
}

bool has_plain_operands(const Lowering& low) {
  const Attrs& attrs = low.attrs();
  const bool has_bias = attrs.flag("has_bias");
  for (std::size_t i = 0; i < (has_bias ? 3u : 2u); ++i) {
    if (low.input(i).dtype != DType::Float32) return false;
  }
  return low.output(0).dtype == DType::Float32 && (!has_bias || low.input(2).contiguous()) &&
         !attrs.flag("has_weight_scales") && !attrs.has("src_scale") && !attrs.has("dst_scale");
}

bool lies_in_lines(const Matrix& m) { return m.dims.size() == 2 && (m.strides[0] == 1 || m.strides[1] == 1); }

}  // namespace

void lower_strassen(Lowering& low, const Matrix& a, const Matrix& b, const Matrix& y,
                    const std::vector<Matrix>& posts) {
  const MultiplyFn multiply = product::multiply();
  if (!multiply) low.reject("Strassen's algorithm needs AVX-512");
  if (!has_plain_operands(low) || !lies_in_lines(a) || a.dims[1] == 0 || !lies_in_lines(b) ||
      y.dims.size() != 2 || y.strides[1] != 1) {
    low.reject("Strassen's algorithm multiplies float32 matrices with dense rows or columns");
  }
  const std::optional<Finish> finish = read_finish(low, y, posts);
  if (!finish) low.reject("Strassen's algorithm has no such post-operations");
  const Problem problem{y.dims[0],           y.dims[1],        a.dims[1],    a.strides[0],
                        a.strides[1],        b.strides[0],     b.strides[1], y.strides[0],
                        finish->accumulates, finish->epilogue, loops()};
  const std::int64_t down = low.attrs().integer("down", 1);
  const std::int64_t across = low.attrs().integer("across", omp_get_max_threads());
  if (down < 1 || across < 1 || down > kMostParts || across > kMostParts / down)
    low.reject("it is cut into " + std::to_string(down) + " by " + std::to_string(across) + " parts");
  const Params params(multiply, Grid(problem, down, across));
  const double flops =
      2.0 * static_cast<double>(problem.rows * problem.columns) * static_cast<double>(problem.depth);
  low.describe("strassen:avx512",
               (a.strides[1] == 1 ? "ab," : "ba,") + std::string(b.strides[1] == 1 ? "ab" : "ba"), flops);
  ProductStep::Places places;
  places.emplace_back(&BoundProduct::a, low.at(low.input(0)));
  places.emplace_back(&BoundProduct::b, low.at(low.input(1)));
  places.emplace_back(&BoundProduct::y, low.at(low.output(0)));
  places.emplace_back(
      &BoundProduct::buffers,
      low.scratch(static_cast<std::size_t>(params.grid.parts() * params.buffer_floats) * sizeof(float)));
  if (finish->bias) places.emplace_back(&BoundProduct::bias, low.at(low.input(*finish->bias)));
  if (finish->residual) places.emplace_back(&BoundProduct::residual, low.at(low.input(*finish->residual)));
  if (finish->factor) places.emplace_back(&BoundProduct::factor, low.at(low.input(*finish->factor)));
  low.emit(std::make_unique<ProductStep>(params, std::move(places)));
}

}  // namespace npu
