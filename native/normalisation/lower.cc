// Task kind "layer_norm_grad".
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/half.h"
#include "core/parallel.h"
#include "core/processor.h"
#include "normalisation/layer_norm_grad.h"
#include "runtime/lowering.h"

namespace npu {
namespace normalisation {

RowFn layer_norm_grad(DType type) {
  if (has(Vectors::Avx512))
    return layer_norm_grad_for<Vectors::Avx512>(type);  // bfloat16 without its products too
  return has(Vectors::Avx2) ? layer_norm_grad_for<Vectors::Avx2>(type) : nullptr;
}

}  // namespace normalisation

namespace {

using normalisation::Row;
using normalisation::RowFn;

constexpr double kCycles = 7;  // of an element

// Inputs, then outputs; all but the first four are optional.
enum Place : std::uint8_t { kDy, kX, kMean, kInverse, kScale, kDx, kDscale, kDbias, kPlaces };

struct Operand {
  bool given = false;
  DType type = DType::Float32;
  Location where;
};

struct Params {
  RowFn run = nullptr;
  std::int64_t rows = 0, columns = 0;
  std::int64_t parts = 1;         // of the rows, one for a thread
  std::int64_t part_columns = 0;  // of the sums of a part, whole cache lines
  std::array<Operand, kPlaces> operands;
  Location buffers;  // scale, then the two sums of each part

  bool sums() const { return operands[kDscale].given || operands[kDbias].given; }
  std::size_t bytes() const {
    return static_cast<std::size_t>((1 + 2 * parts) * part_columns) * sizeof(float);
  }
};

// An element of an array of float32 or bfloat16.
float value_at(const void* data, DType type, std::int64_t index) {
  if (type == DType::Float32) return static_cast<const float*>(data)[index];
  return static_cast<float>(static_cast<const BFloat16*>(data)[index]);
}

void put_at(void* data, DType type, std::int64_t index, float value) {
  if (type == DType::Float32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<BFloat16*>(data)[index] = BFloat16(value);
  }
}

class BoundGradient : public BoundStep {
 public:
  explicit BoundGradient(const Params& params) : params_(params) {}

  void run(RunState&) override {
    float* const scale = static_cast<float*>(buffers);
    for (std::int64_t c = 0; c < params_.columns; ++c) scale[c] = given(kScale) ? value(kScale, c) : 1.0f;
    parallel_for(params_.parts, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) run_part(part);
    });
    if (given(kDscale)) put_sums(kDscale, 0);
    if (given(kDbias)) put_sums(kDbias, 1);
  }

  std::array<void*, kPlaces> at{};
  void* buffers = nullptr;

 private:
  bool given(Place place) const { return params_.operands[place].given; }
  float value(Place place, std::int64_t index) const {
    return value_at(at[place], params_.operands[place].type, index);
  }
  char* row_of(Place place, std::int64_t row) const {
    const auto size = static_cast<std::int64_t>(dtype_size(params_.operands[kX].type));
    return given(place) ? static_cast<char*>(at[place]) + row * params_.columns * size : nullptr;
  }
  float* sums_of(std::int64_t part, std::int64_t which) const {
    return static_cast<float*>(buffers) + (1 + 2 * part + which) * params_.part_columns;
  }

  void run_part(std::int64_t part) const {
    Row row;
    row.scale = static_cast<const float*>(buffers);
    row.columns = params_.columns;
    if (params_.sums()) {
      row.dscale = sums_of(part, 0);
      row.dbias = sums_of(part, 1);
      std::memset(row.dscale, 0, static_cast<std::size_t>(2 * params_.part_columns) * sizeof(float));
    }
    const std::int64_t last = params_.rows * (part + 1) / params_.parts;
    for (std::int64_t i = params_.rows * part / params_.parts; i < last; ++i) {
      row.dy = row_of(kDy, i);
      row.x = row_of(kX, i);
      row.dx = row_of(kDx, i);
      row.mean = value(kMean, i);
      row.inverse = value(kInverse, i);
      params_.run(row);
    }
  }

  // Reduce in part order, independent of threads.
  void put_sums(Place place, std::int64_t which) const {
    for (std::int64_t c = 0; c < params_.columns; ++c) {
      float sum = 0.0f;
      for (std::int64_t part = 0; part < params_.parts; ++part) sum += sums_of(part, which)[c];
      put_at(at[place], params_.operands[place].type, c, sum);
    }
  }

  const Params& params_;
};

class GradientStep : public Step {
 public:
  explicit GradientStep(const Params& params) : params_(params) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundGradient>(params_);
    for (std::size_t i = 0; i < kPlaces; ++i) {
      if (params_.operands[i].given) binder.address(&bound->at[i], params_.operands[i].where);
    }
    binder.address(&bound->buffers, params_.buffers);
    return bound;
  }

 private:
  Params params_;
};

// Finds the operands of a task, those that its attributes name among them.
class Operands {
 public:
  explicit Operands(Lowering& low) : low_(low) {}

  Operand input(std::int64_t elements, bool given = true) {
    return given ? checked(low_.input(input_++), elements) : Operand{};
  }
  Operand output(std::int64_t elements, bool given) {
    return given ? checked(low_.output(output_++), elements) : Operand{};
  }
  bool are_all() const { return input_ == low_.input_count() && output_ == low_.output_count(); }

 private:
  Operand checked(const View& view, std::int64_t elements) {
    if (view.elements() != elements) low_.reject("the shapes do not fit");
    if (!view.contiguous()) low_.reject("elements must be contiguous");
    if (view.dtype != DType::Float32 && view.dtype != DType::BFloat16)
      low_.reject("it is float32 or bfloat16");
    return {true, view.dtype, low_.at(view)};
  }

  Lowering& low_;
  std::size_t input_ = 0, output_ = 0;
};

bool is_alike(const std::array<Operand, kPlaces>& operands, Place place) {
  return !operands[place].given || operands[place].type == operands[kX].type;
}

void lower_rows(Lowering& low) {
  const View& x = low.input(kX);
  const Attrs& attrs = low.attrs();
  Params params;
  params.run = normalisation::layer_norm_grad(x.dtype);
  if (!params.run) low.reject("this machine has no kernel for it");
  const std::int64_t elements = x.elements();
  params.columns = attrs.integer("columns", 0);
  if (params.columns <= 0 || elements == 0 || elements % params.columns) low.reject("the shapes do not fit");
  params.rows = elements / params.columns;
  const Dims wanted = attrs.integers("wanted", {1, 1, 1});
  if (wanted.size() != 3) low.reject("there are three results");
  Operands found(low);
  params.operands[kDy] = found.input(elements);
  params.operands[kX] = found.input(elements);
  params.operands[kMean] = found.input(params.rows);
  params.operands[kInverse] = found.input(params.rows);
  params.operands[kScale] = found.input(params.columns, attrs.flag("has_scale"));
  params.operands[kDx] = found.output(elements, wanted[0] != 0);
  params.operands[kDscale] = found.output(params.columns, wanted[1] != 0);
  params.operands[kDbias] = found.output(params.columns, wanted[2] != 0);
  if (!found.are_all()) low.reject("it has operands that no attribute names");
  if (!is_alike(params.operands, kDy) || !is_alike(params.operands, kDx))
    low.reject("operands have different types");
  params.parts = std::clamp<std::int64_t>(elements / grain(kCycles), 1,
                                          std::min<std::int64_t>(omp_get_max_threads(), params.rows));
  params.part_columns = (params.columns + 15) / 16 * 16;
  low.describe(with_vectors("rows"), "", 12.0 * static_cast<double>(elements));
  params.buffers = low.scratch(params.bytes());
  low.emit(std::make_unique<GradientStep>(params));
}

constexpr Implementation kImplementations[] = {{"rows", lower_rows}};

}  // namespace

void lower_layer_norm_grad(Lowering& low) { lower_named(low, kImplementations); }

}  // namespace npu
