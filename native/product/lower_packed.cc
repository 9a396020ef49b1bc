// Task kind "packed_matmul".
#include <algorithm>
#include <optional>
#include <string>

#include "core/parallel.h"
#include "core/processor.h"
#include "onednn/engine.h"
#include "onednn/primitive.h"
#include "product/packed.h"
#include "product/panels.h"
#include "runtime/kernel_step.h"

namespace npu {

namespace product {

const PackedKernels& packed() {
  return has(Vectors::Avx512) ? kPackedAvx512 : has(Vectors::Avx2) ? kPackedAvx2 : kPackedSse4;
}

const PanelKernels* panels() { return has(Vectors::Avx512) && sums_bytes_exactly() ? &kPanelsVnni : nullptr; }

}  // namespace product

namespace {

using product::PackedKernels;
using product::PackedOperands;
using product::PackedProblem;
using product::PanelOperands;
using product::PanelProblem;

constexpr double kCycles = 2;  // of a weight

struct Params {
  PackedProblem problem{};
  const PackedKernels* kernels = nullptr;

  std::int64_t grain() const { return npu::grain(kCycles, problem.depth); }
};

// The operands of either step.
class BoundPacked : public BoundStep {
 public:
  explicit BoundPacked(const Params& params) : params_(params) {}

  void* x = nullptr;
  void* weights = nullptr;
  void* scales = nullptr;
  void* zeros = nullptr;
  void* bias = nullptr;
  void* y = nullptr;
  void* work = nullptr;  // x as the kernel reads it, or unpacked weights

 protected:
  PackedOperands operands() const {
    return {x,
            static_cast<const std::uint8_t*>(weights),
            static_cast<const float*>(scales),
            static_cast<const float*>(zeros),
            bias,
            y};
  }
  const Params& params_;
};

class BoundRows : public BoundPacked {
 public:
  using BoundPacked::BoundPacked;

  void run(RunState&) override {
    const PackedOperands operands = this->operands();
    auto* const prepared = static_cast<float*>(work);
    params_.kernels->prepare(params_.problem, x, prepared);
    parallel_for(params_.problem.columns, params_.grain(), [&](std::int64_t first, std::int64_t last) {
      params_.kernels->multiply(params_.problem, operands, prepared, first, last);
    });
  }
};

// How a product with many rows is cut: tiles of columns, the last of which may have fewer.
struct TileParams : Params {
  std::int64_t columns = 0;
  dnnl::matmul::primitive_desc whole, last;
  std::int64_t tile_bytes = 0;  // of unpacked weights, whole cache lines; the scratchpad follows
};

// A product of the library with one number of columns.
class TileProduct {
 public:
  explicit TileProduct(const dnnl::matmul::primitive_desc& desc)
      : product_(desc),
        x_(desc.src_desc(), onednn_engine(), nullptr),
        weights_(desc.weights_desc(), onednn_engine(), nullptr),
        bias_(desc.bias_desc(), onednn_engine(), nullptr),
        y_(desc.dst_desc(), onednn_engine(), nullptr),
        scratchpad_(desc.scratchpad_desc(), onednn_engine(), nullptr) {}

  void run(RunState& state, const PackedOperands& o, void* tile, void* scratchpad) {
    x_.set_data_handle(const_cast<void*>(o.x));
    weights_.set_data_handle(tile);
    y_.set_data_handle(o.y);
    scratchpad_.set_data_handle(scratchpad);
    if (o.bias) bias_.set_data_handle(const_cast<void*>(o.bias));
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, x_.get()},
                                    {DNNL_ARG_WEIGHTS, weights_.get()},
                                    {DNNL_ARG_DST, y_.get()},
                                    {DNNL_ARG_SCRATCHPAD, scratchpad_.get()},
                                    {DNNL_ARG_BIAS, bias_.get()}};
    dnnl::error::wrap_c_api(dnnl_primitive_execute(product_.get(), state.stream, o.bias ? 5 : 4, args),
                            "oneDNN could not run a product with packed weights");
  }

 private:
  dnnl::matmul product_;
  dnnl::memory x_, weights_, bias_, y_, scratchpad_;
};

class BoundTiles : public BoundPacked {
 public:
  explicit BoundTiles(const TileParams& params) : BoundPacked(params), tiles_(params), whole_(params.whole) {
    if (params.last) last_.emplace(params.last);
  }

  void run(RunState& state) override {
    const std::int64_t columns = params_.problem.columns;
    for (std::int64_t first = 0; first < columns; first += tiles_.columns) {
      run_tile(state, first, std::min(first + tiles_.columns, columns));
    }
  }

 private:
  void run_tile(RunState& state, std::int64_t begin, std::int64_t end) {
    const auto size = static_cast<std::int64_t>(dtype_size(params_.problem.type));
    auto* const tile = static_cast<char*>(work);
    PackedOperands operands = this->operands();
    parallel_for(end - begin, params_.grain(), [&](std::int64_t first, std::int64_t last) {
      params_.kernels->unpack(params_.problem, operands, begin + first, begin + last,
                              tile + first * params_.problem.depth * size);
    });
    operands.y = static_cast<char*>(y) + begin * size;
    if (bias) operands.bias = static_cast<const char*>(bias) + begin * size;
    TileProduct& product = end - begin == tiles_.columns ? whole_ : *last_;
    product.run(state, operands, tile, tile + tiles_.tile_bytes);
  }

  const TileParams& tiles_;
  TileProduct whole_;
  std::optional<TileProduct> last_;
};

void check(Lowering& low, bool fits, const char* why) {
  if (!fits) low.reject(why);
}

// The operands of a task by its attributes, checked.
class Operands {
 public:
  explicit Operands(Lowering& low)
      : x(low.input(0)), weights(low.input(1)), scales(low.input(2)), y(low.output(0)) {
    std::size_t next = 3;
    if (low.attrs().flag("has_zeros")) zeros = &low.input(next++);
    if (low.attrs().flag("has_bias")) bias = &low.input(next++);
    check(low, next == low.input_count(), "it has operands that no attribute names");
  }

  PackedProblem problem(Lowering& low) const {
    const Attrs& attrs = low.attrs();
    check(low,
          x.dims.size() == 2 && y.dims.size() == 2 && weights.dims.size() == 2 && scales.dims.size() == 2,
          "operands are matrices");
    PackedProblem p{};
    p.rows = x.dims[0], p.depth = x.dims[1], p.columns = weights.dims[0], p.row_bytes = weights.dims[1];
    p.bits = static_cast<int>(attrs.integer("bits", 0)), p.group = attrs.integer("group", 0);
    p.groups = scales.dims[1], p.type = x.dtype, p.is_signed = attrs.flag("signed");
    check(low, p.bits == 4 || p.bits == 8, "weights have 4 or 8 bits");
    check(low, p.rows > 0 && p.depth > 0 && p.columns > 0, "it has no elements");
    check(low, x.dtype == DType::Float32 || x.dtype == DType::BFloat16, "x is float32 or bfloat16");
    check(low, weights.dtype == DType::Int8 || weights.dtype == DType::UInt8, "weights are bytes");
    check(low, p.group > 0 && p.groups == (p.depth + p.group - 1) / p.group && scales.dims[0] == p.columns,
          "the factors do not fit");
    check(low, p.row_bytes * (8 / p.bits) >= p.depth && p.row_bytes * (8 / p.bits) - p.depth < 256,
          "the weights do not fit x");
    check(low, y.dims[0] == p.rows && y.dims[1] == p.columns && y.dtype == x.dtype, "y does not fit");
    check(low,
          scales.dtype == DType::Float32 &&
              (!zeros || (zeros->dtype == DType::Float32 && zeros->dims == scales.dims)),
          "factors and zero points are float32, of one shape");
    check(low, !bias || (bias->elements() == p.columns && bias->dtype == x.dtype), "the bias does not fit");
    for (const View* view : {&x, &weights, &scales, &y, zeros ? zeros : &y, bias ? bias : &y}) {
      check(low, view->contiguous(), "elements must be contiguous");
    }
    return p;
  }

  const View& x;
  const View& weights;
  const View& scales;
  const View& y;
  const View* zeros = nullptr;
  const View* bias = nullptr;
};

template <class Bound, class P>
void emit_step(Lowering& low, const Operands& o, const P& params, const Location& work) {
  using PackedStep = KernelStep<Bound, P>;
  typename PackedStep::Places places{{static_cast<void* Bound::*>(&Bound::x), low.at(o.x)},
                                     {static_cast<void* Bound::*>(&Bound::weights), low.at(o.weights)},
                                     {static_cast<void* Bound::*>(&Bound::scales), low.at(o.scales)},
                                     {static_cast<void* Bound::*>(&Bound::y), low.at(o.y)},
                                     {static_cast<void* Bound::*>(&Bound::work), work}};
  if (o.zeros) places.emplace_back(&Bound::zeros, low.at(*o.zeros));
  if (o.bias) places.emplace_back(&Bound::bias, low.at(*o.bias));
  low.emit(std::make_unique<PackedStep>(params, std::move(places)));
}

double flops_of(const PackedProblem& p) {
  return 2.0 * static_cast<double>(p.rows) * static_cast<double>(p.columns) * static_cast<double>(p.depth);
}

// Groups whose factors are shared by whole blocks, or by the same lanes of every block.
bool has_even_groups(const PackedProblem& p) {
  const std::int64_t span = 16 * (32 / p.bits);
  return p.groups == 1 || p.group % span == 0 || (span % p.group == 0 && p.group % (32 / p.bits) == 0);
}

void lower_rows(Lowering& low) {
  const Operands operands(low);
  Params params;
  params.problem = operands.problem(low);
  params.kernels = &product::packed();
  check(low, has_even_groups(params.problem), "groups do not match the blocks of the kernel");
  if (params.problem.groups == 1) params.problem.group = (params.problem.depth + 127) / 128 * 128;
  low.describe("rows:" + std::to_string(params.problem.bits) + " bits", "", flops_of(params.problem));
  const auto bytes = static_cast<std::size_t>(params.kernels->prepared_bytes(params.problem));
  emit_step<BoundRows>(low, operands, params, low.scratch(bytes));
}

// The product of x with a number of unpacked rows of weights.
dnnl::matmul::primitive_desc describe_tile(const Lowering& low, const Operands& o, const PackedProblem& p,
                                           std::int64_t columns) {
  const Desc x = describe(low, p.type, {p.rows, p.depth}, {p.depth, 1});
  const Desc weights = describe(low, p.type, {p.depth, columns}, {1, p.depth});
  const Desc bias = o.bias ? describe(low, p.type, {1, columns}, {columns, 1}) : Desc();
  const Desc y = describe(low, p.type, {p.rows, columns}, {p.columns, 1});
  return {onednn_engine(), x, weights, bias, y, base_attr()};
}

struct PanelParams {
  PanelProblem problem{};
  const product::PanelKernels* kernels = nullptr;
};

class BoundPanels : public BoundStep {
 public:
  explicit BoundPanels(const PanelParams& params) : params_(params) {}

  void run(RunState&) override {
    const PanelProblem& problem = params_.problem;
    const PanelOperands operands{x,
                                 static_cast<const char*>(weights),
                                 static_cast<const char*>(scales),
                                 static_cast<const char*>(zeros),
                                 bias,
                                 y};
    auto* const prepared = static_cast<std::uint32_t*>(work);
    const std::int64_t chunks = params_.kernels->chunks(problem);
    parallel_for(chunks, npu::grain(kCycles, problem.depth), [&](std::int64_t first, std::int64_t last) {
      params_.kernels->prepare(problem, x, first, last, prepared);
    });
    const std::int64_t panel = problem.depth * product::kPanelColumns;
    parallel_for(problem.panels(), npu::grain(kCycles, panel), [&](std::int64_t first, std::int64_t last) {
      params_.kernels->multiply(problem, operands, prepared, first, last);
    });
  }

  void* x = nullptr;
  void* weights = nullptr;
  void* scales = nullptr;
  void* zeros = nullptr;
  void* bias = nullptr;
  void* y = nullptr;
  void* work = nullptr;  // x in fixed-point numbers

 private:
  const PanelParams& params_;
};

int digits_of(DType type) { return type == DType::Float32 ? 3 : 2; }

void lower_panels(Lowering& low) {
  const Operands operands(low);
  PanelParams params;
  params.kernels = product::panels();
  check(low, params.kernels != nullptr, "the processor has no dot products of bytes in AVX-512");
  PanelProblem& p = params.problem;
  static_cast<PackedProblem&>(p) = operands.problem(low);
  p.digits = low.attrs().flag("rounds_x") ? 1 : digits_of(p.type);
  p.block = product::panel_block(p.depth, p.group, p.digits);
  check(low, p.block > 0, "groups have no whole blocks of the kernel");
  for (const View* view : {&operands.weights, &operands.scales, operands.zeros}) {
    check(low, !view || low.is_constant(*view), "weights, factors and zero points must be constants");
  }
  const auto factors = [&](const View& view) {
    return low.prepared(view, static_cast<std::size_t>(p.factor_bytes()),
                        [p](const char* from, char* to) { product::pack_factors(p, from, to); });
  };
  using Step = KernelStep<BoundPanels, PanelParams>;
  Step::Places places{{&BoundPanels::x, low.at(operands.x)},
                      {&BoundPanels::weights,
                       low.prepared(operands.weights, static_cast<std::size_t>(p.weight_bytes()),
                                    [p](const char* from, char* to) { product::pack_panels(p, from, to); })},
                      {&BoundPanels::scales, factors(operands.scales)},
                      {&BoundPanels::y, low.at(operands.y)},
                      {&BoundPanels::work, low.scratch(static_cast<std::size_t>(p.prepared_bytes()))}};
  if (operands.zeros) places.emplace_back(&BoundPanels::zeros, factors(*operands.zeros));
  if (operands.bias) places.emplace_back(&BoundPanels::bias, low.at(*operands.bias));
  low.describe("panels:" + std::to_string(p.bits) + " bits", "", flops_of(p));
  low.emit(std::make_unique<Step>(params, std::move(places)));
}

void lower_tiles(Lowering& low) {
  const Operands operands(low);
  TileParams params;
  params.problem = operands.problem(low);
  params.kernels = &product::packed();
  const PackedProblem& p = params.problem;
  check(low, p.groups == 1 || p.group * p.bits % 8 == 0, "groups begin within a byte");
  const std::int64_t row = p.depth * static_cast<std::int64_t>(dtype_size(p.type));
  const std::int64_t unpacked = loops().last_bytes / 8;  // weights of a tile, which the caches keep
  params.columns = std::min(std::max<std::int64_t>(unpacked / row / 64 * 64, 64), p.columns);
  params.whole = describe_tile(low, operands, p, params.columns);
  std::size_t scratchpad = params.whole.scratchpad_desc().get_size();
  if (p.columns % params.columns) {
    params.last = describe_tile(low, operands, p, p.columns % params.columns);
    scratchpad = std::max(scratchpad, params.last.scratchpad_desc().get_size());
  }
  params.tile_bytes = (params.columns * row + 63) / 64 * 64;
  low.describe("tiles:" + std::to_string(p.bits) + " bits", "", flops_of(p));
  emit_step<BoundTiles>(low, operands, params,
                        low.scratch(static_cast<std::size_t>(params.tile_bytes) + scratchpad));
}

constexpr Implementation kImplementations[] = {
    {"panels", lower_panels}, {"rows", lower_rows}, {"tiles", lower_tiles}};

}  // namespace

void lower_packed_matmul(Lowering& low) { lower_named(low, kImplementations); }

}  // namespace npu
