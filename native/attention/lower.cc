// Task kinds "attention" and "attention_grad".
#include <omp.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "attention/attention.h"
#include "core/parallel.h"
#include "runtime/lowering.h"

namespace npu {
namespace {

using attention::Backward;
using attention::BackwardFn;
using attention::Forward;
using attention::ForwardFn;
using attention::Mask;
using attention::MaskKind;
using attention::Rows;
using attention::Shape;

// One matrix for each of two leading dimensions. Strides count bytes from one matrix to the next.
struct Stack {
  Dims dims = {1, 1};
  std::array<std::int64_t, 2> steps = {0, 0};
  std::int64_t row = 0;  // elements

  std::int64_t offset(std::int64_t head) const {
    return head / dims[1] * steps[0] + head % dims[1] * steps[1];
  }
};

std::size_t leading(const Lowering& low, const View& view, std::size_t matrix_rank) {
  const std::size_t rank = view.dims.size();
  if (rank < matrix_rank || rank > matrix_rank + 2) low.reject("operands have up to two leading dimensions");
  return rank - matrix_rank;
}

// `like`: dimensions that those of size one are repeated to.
Stack stack_of(const Lowering& low, const View& view, std::size_t matrix_rank, const Dims* like = nullptr) {
  const std::size_t count = leading(low, view, matrix_rank);
  const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
  Stack stack;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t to = 2 - count + i;
    stack.dims[to] = view.dims[i];
    stack.steps[to] = view.dims[i] == 1 ? 0 : view.strides[i] * size;
  }
  if (view.dims.back() > 1 && view.strides.back() != 1) low.reject("columns must be contiguous");
  if (matrix_rank == 2) stack.row = view.strides[view.dims.size() - 2];
  if (like) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (stack.dims[i] != (*like)[i] && stack.dims[i] != 1) low.reject("leading dimensions differ");
    }
    stack.dims = *like;
  }
  return stack;
}

// An operand: the dims it is stacked over, and its location.
struct Operand {
  Stack stack;
  Location where;
};

class Operands {
 public:
  explicit Operands(Lowering& low) : low_(low), like_(stack_of(low, low.input(0), 2).dims) {}

  std::int64_t heads() const { return like_[0] * like_[1]; }

  // A matrix of given size in each head, of the type of the first input.
  Operand matrix(const View& view, std::int64_t rows, std::int64_t columns) {
    const std::size_t rank = view.dims.size();
    Operand found{exact(view, 2), {}};
    if (view.dtype != low_.input(0).dtype) low_.reject("operands have different types");
    if (view.dims[rank - 2] != rows || view.dims[rank - 1] != columns) low_.reject("the shapes do not fit");
    return located(found, view);
  }

  // A float32 for each query.
  Operand sums(const View& view, std::int64_t queries) {
    Operand found{exact(view, 1), {}};
    if (view.dtype != DType::Float32 || view.dims.back() != queries)
      low_.reject("sums are float32, one a query");
    return located(found, view);
  }

  Operand mask(const View& view, std::int64_t queries, std::int64_t keys) {
    const std::size_t rank = view.dims.size();
    if (rank < 2) low_.reject("a mask has queries and keys");
    if (view.dtype != DType::Bool && view.dtype != DType::Float32) low_.reject("a mask is bool or float32");
    if (view.dims[rank - 1] != keys || (view.dims[rank - 2] != queries && view.dims[rank - 2] != 1)) {
      low_.reject("the mask does not fit");
    }
    Operand found{stack_of(low_, view, 2, &like_), {}};
    if (view.dims[rank - 2] == 1) found.stack.row = 0;
    return located(found, view);
  }

  // The mask, if there is one.
  std::optional<Operand> optional_mask(std::size_t index, const Shape& shape) {
    if (low_.input_count() <= index) return {};
    return mask(low_.input(index), shape.queries, shape.keys);
  }

 private:
  Stack exact(const View& view, std::size_t matrix_rank) const {
    Stack stack = stack_of(low_, view, matrix_rank);
    if (stack.dims != like_) low_.reject("leading dimensions differ");
    return stack;
  }

  Operand located(Operand found, const View& view) {
    found.where = low_.at(view);
    return found;
  }

  Lowering& low_;
  Dims like_;
};

Shape shape_of(const Lowering& low, const View& q, const View& k, const View& v) {
  const std::size_t rank = q.dims.size();
  if (rank < 2 || k.dims.size() != rank || v.dims.size() != rank)
    low.reject("q, k and v have different ranks");
  const Shape shape{q.dims[rank - 2],
                    k.dims[rank - 2],
                    q.dims[rank - 1],
                    v.dims[rank - 1],
                    static_cast<float>(low.attrs().real("scale", 1.0)),
                    low.attrs().flag("causal"),
                    loops().l2_bytes / 2};
  const bool pairs = q.dtype != DType::BFloat16 || (shape.depth % 2 == 0 && shape.width % 2 == 0);
  if (!pairs) low.reject("columns of bfloat16 come in pairs");
  if (shape.queries == 0 || shape.keys == 0 || shape.depth == 0 || shape.width == 0)
    low.reject("it is empty");
  return shape;
}

double product_flops(const Shape& shape, std::int64_t heads) {
  return 2.0 * static_cast<double>(heads * shape.queries) * static_cast<double>(shape.keys);
}

Rows rows_at(void* base, const Operand& operand, std::int64_t head) {
  return {static_cast<char*>(base) + operand.stack.offset(head), operand.stack.row};
}

// Properties of the mask shared by all heads.
Mask mask_of(const Lowering& low, std::size_t index) {
  if (low.input_count() <= index) return {};
  const bool kept = low.input(index).dtype == DType::Bool;
  const double fill = low.attrs().real("fill", -std::numeric_limits<double>::infinity());
  return {kept ? MaskKind::Kept : MaskKind::Added, nullptr, 0, static_cast<float>(fill),
          low.attrs().flag("zeros")};
}

Mask mask_at(const Mask& common, void* base, const std::optional<Operand>& operand, std::int64_t head) {
  if (!operand) return common;
  const Rows rows = rows_at(base, *operand, head);
  return {common.kind, rows.data, rows.row * (common.kind == MaskKind::Added ? 4 : 1), common.fill,
          common.zeros};
}

// -- forward
// -------------------------------------------------------------------------------------------------

struct ForwardParams {
  ForwardFn run;
  Shape shape;
  std::int64_t heads, parts;  // parts that the queries of a head are cut into
  std::int64_t buffer_bytes;
  Operand q, k, v, y;
  std::optional<Operand> sums, mask;
  Mask masks;
  Location buffers;
};

class BoundForward : public BoundStep {
 public:
  explicit BoundForward(const ForwardParams& params) : params_(params) {}

  void run(RunState&) override {
    parallel_for(params_.heads * params_.parts, 1, [&](std::int64_t begin, std::int64_t end) {
      char* buffer = static_cast<char*>(buffers) + omp_get_thread_num() * params_.buffer_bytes;
      for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t part = item % params_.parts, queries = params_.shape.queries;
        const bool has_next = item + 1 < end && part + 1 == params_.parts;
        const Forward next = head(item / params_.parts + (has_next ? 1 : 0));
        params_.run(head(item / params_.parts), has_next ? &next : nullptr, queries * part / params_.parts,
                    queries * (part + 1) / params_.parts, buffer);
      }
    });
  }

  void* q = nullptr;
  void* k = nullptr;
  void* v = nullptr;
  void* y = nullptr;
  void* sums = nullptr;
  void* mask = nullptr;
  void* buffers = nullptr;

 private:
  Forward head(std::int64_t index) const {
    Forward found{params_.shape,
                  rows_at(q, params_.q, index),
                  rows_at(k, params_.k, index),
                  rows_at(v, params_.v, index),
                  rows_at(y, params_.y, index),
                  nullptr,
                  mask_at(params_.masks, mask, params_.mask, index)};
    if (params_.sums) found.sums = reinterpret_cast<float*>(rows_at(sums, *params_.sums, index).data);
    return found;
  }

  const ForwardParams& params_;
};

class ForwardStep : public Step {
 public:
  explicit ForwardStep(const ForwardParams& params) : params_(params) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundForward>(params_);
    binder.address(&bound->q, params_.q.where);
    binder.address(&bound->k, params_.k.where);
    binder.address(&bound->v, params_.v.where);
    binder.address(&bound->y, params_.y.where);
    binder.address(&bound->buffers, params_.buffers);
    if (params_.sums) binder.address(&bound->sums, params_.sums->where);
    if (params_.mask) binder.address(&bound->mask, params_.mask->where);
    return bound;
  }

 private:
  ForwardParams params_;
};

// -- backward
// ------------------------------------------------------------------------------------------------

constexpr std::size_t kReads = 6, kWrites = 3;  // dy q k v y sums; dq dk dv

struct BackwardParams {
  BackwardFn run;
  Shape shape;
  std::int64_t heads;
  std::int64_t buffer_bytes;
  std::array<Operand, kReads> reads;
  std::array<Operand, kWrites> writes;
  std::optional<Operand> mask;
  Mask masks;
  Location buffers;
};

class BoundBackward : public BoundStep {
 public:
  explicit BoundBackward(const BackwardParams& params) : params_(params) {}

  void run(RunState&) override {
    parallel_for(params_.heads, 1, [&](std::int64_t begin, std::int64_t end) {
      char* buffer = static_cast<char*>(buffers) + omp_get_thread_num() * params_.buffer_bytes;
      for (std::int64_t index = begin; index < end; ++index) {
        const bool has_next = index + 1 < end;
        const Backward next = head(has_next ? index + 1 : index);
        params_.run(head(index), has_next ? &next : nullptr, buffer);
      }
    });
  }

  std::array<void*, kReads> reads{};
  std::array<void*, kWrites> writes{};
  void* mask = nullptr;
  void* buffers = nullptr;

 private:
  Backward head(std::int64_t index) const {
    const auto read = [&](std::size_t i) { return rows_at(reads[i], params_.reads[i], index); };
    const auto write = [&](std::size_t i) { return rows_at(writes[i], params_.writes[i], index); };
    return {params_.shape,
            read(0),
            read(1),
            read(2),
            read(3),
            read(4),
            reinterpret_cast<const float*>(read(5).data),
            write(0),
            write(1),
            write(2),
            mask_at(params_.masks, mask, params_.mask, index)};
  }

  const BackwardParams& params_;
};

class BackwardStep : public Step {
 public:
  explicit BackwardStep(const BackwardParams& params) : params_(params) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundBackward>(params_);
    for (std::size_t i = 0; i < kReads; ++i) binder.address(&bound->reads[i], params_.reads[i].where);
    for (std::size_t i = 0; i < kWrites; ++i) binder.address(&bound->writes[i], params_.writes[i].where);
    if (params_.mask) binder.address(&bound->mask, params_.mask->where);
    binder.address(&bound->buffers, params_.buffers);
    return bound;
  }

 private:
  BackwardParams params_;
};

void lower_fused(Lowering& low) {
  const View& q = low.input(0);
  const Shape shape = shape_of(low, q, low.input(1), low.input(2));
  const ForwardFn run = attention::forward(q.dtype);
  if (!run) low.reject("this machine has no kernel for it");
  Operands operands(low);
  ForwardParams params{run, shape, operands.heads(), 1, 0, {}, {}, {}, {}, {}, {}, mask_of(low, 3), {}};
  params.q = operands.matrix(q, shape.queries, shape.depth);
  params.k = operands.matrix(low.input(1), shape.keys, shape.depth);
  params.v = operands.matrix(low.input(2), shape.keys, shape.width);
  params.y = operands.matrix(low.output(0), shape.queries, shape.width);
  if (low.output_count() > 1) params.sums = operands.sums(low.output(1), shape.queries);
  params.mask = operands.optional_mask(3, shape);
  const std::int64_t threads = omp_get_max_threads();
  // Each part packs the keys and values of its head again; with 8 heads a thread at most an eighth waits.
  if (params.heads % threads && params.heads < 8 * threads) params.parts = threads;
  params.parts = std::min(params.parts, shape.queries);
  params.buffer_bytes = (attention::forward_scratch(shape, q.dtype) + 63) / 64 * 64;
  low.describe(with_vectors("fused"), "",
               product_flops(shape, params.heads) * static_cast<double>(shape.depth + shape.width));
  params.buffers = low.scratch(static_cast<std::size_t>(threads * params.buffer_bytes));
  low.emit(std::make_unique<ForwardStep>(params));
}

void lower_fused_grad(Lowering& low) {
  const View& q = low.input(1);
  const Shape shape = shape_of(low, q, low.input(2), low.input(3));
  const BackwardFn run = attention::backward(q.dtype);
  if (!run) low.reject("this machine has no kernel for it");
  Operands operands(low);
  BackwardParams params{run, shape, operands.heads(), 0, {}, {}, {}, mask_of(low, 6), {}};
  params.reads = {operands.matrix(low.input(0), shape.queries, shape.width),
                  operands.matrix(q, shape.queries, shape.depth),
                  operands.matrix(low.input(2), shape.keys, shape.depth),
                  operands.matrix(low.input(3), shape.keys, shape.width),
                  operands.matrix(low.input(4), shape.queries, shape.width),
                  operands.sums(low.input(5), shape.queries)};
  params.writes = {operands.matrix(low.output(0), shape.queries, shape.depth),
                   operands.matrix(low.output(1), shape.keys, shape.depth),
                   operands.matrix(low.output(2), shape.keys, shape.width)};
  params.mask = operands.optional_mask(6, shape);
  params.buffer_bytes = (attention::backward_scratch(shape, q.dtype) + 63) / 64 * 64;
  low.describe(with_vectors("fused"), "",
               product_flops(shape, params.heads) * static_cast<double>(3 * shape.depth + 2 * shape.width));
  params.buffers = low.scratch(static_cast<std::size_t>(omp_get_max_threads() * params.buffer_bytes));
  low.emit(std::make_unique<BackwardStep>(params));
}

constexpr Implementation kForward[] = {{"fused", lower_fused}};
constexpr Implementation kBackward[] = {{"fused", lower_fused_grad}};

}  // namespace

void lower_attention(Lowering& low) { lower_named(low, kForward); }

void lower_attention_grad(Lowering& low) { lower_named(low, kBackward); }

}  // namespace npu
