// Gradients of convolutions' weights by Winograd's algorithm.
#include <omp.h>

#include <algorithm>
#include <optional>

#include "convolution/partial_sums.h"
#include "convolution/weight_target.h"
#include "core/parallel.h"
#include "winograd/grid.h"
#include "winograd/lower.h"
#include "winograd/winograd.h"

namespace npu {
namespace {

using convolution::WeightTarget;
using winograd::Ahead;
using winograd::Grid;
using winograd::Image;
using winograd::kPadding;
using winograd::kPanel;
using winograd::kPlanes;
using winograd::Range;
using winograd::Tiles;
using winograd::Transforms;

constexpr std::int64_t kMaxChunk = 64;  // tiles worked on at once
constexpr std::int64_t kRows = 48;      // of the weights, computed at once for a panel of columns
constexpr std::int64_t kCollectCost = 12, kAddCost = 15;  // in cycles, for each weight

// One side of the products: the source, or the gradient.
struct Side {
  Image image{};
  std::int64_t distance = 0;  // of images, in elements
  std::int64_t pad_top = 0, pad_left = 0;
  bool is_gradient = false;
};

struct Plan {
  const Transforms* transforms = nullptr;
  bool bf16 = false;
  Side rows, columns;  // the columns' channels lie side by side in the weights
  int rows_input = 0;
  Tiles tiles;
  Grid grid;
  std::int64_t chunk = 0;                                    // tiles worked on at once
  std::int64_t target_row = 0, tap_row = 0, tap_column = 0;  // distances in the weights

  std::int64_t row_count() const { return rows.image.channels; }
  std::int64_t column_count() const { return columns.image.channels; }
  std::int64_t panels() const { return (column_count() + kPanel - 1) / kPanel; }
  std::int64_t panels_of_part() const { return (panels() + grid.along_panels - 1) / grid.along_panels; }
  std::int64_t row_blocks() const { return (row_count() + kRows - 1) / kRows; }
  std::int64_t tiles_of_part() const { return (tiles.count() + grid.along_tiles - 1) / grid.along_tiles; }

  std::int64_t row_line() const { return row_count() + kPadding; }
  std::int64_t column_line() const { return panels_of_part() * kPanel + kPadding; }
  std::int64_t block_plane() const { return kRows * kPanel + kPadding; }
  // Sums that one chunk completes need the place of one block only.
  bool in_one_chunk() const { return tiles_of_part() <= chunk; }
  std::int64_t blocks_kept() const { return in_one_chunk() ? 1 : row_blocks() * panels_of_part(); }
  std::int64_t partial_elements() const { return 9 * row_count() * column_count(); }
  std::size_t buffer_bytes() const {
    const std::int64_t elements =
        kPlanes * (chunk * (row_line() + column_line()) + blocks_kept() * block_plane());
    return static_cast<std::size_t>((elements + 15) / 16 * 16) * sizeof(float);
  }
};

// Where a part puts its results.
struct Target {
  float* first;
  std::int64_t row, tap_row, tap_column;
};

class BoundGradient : public BoundStep {
 public:
  explicit BoundGradient(const Plan& plan) : plan_(plan) {}

  void run(RunState&) override {
    parallel_for(plan_.grid.parts(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        plan_.bf16 ? compute<std::uint16_t>(part) : compute<float>(part);
      }
    });
    if (plan_.grid.along_tiles > 1) add_sums_of_parts();
  }

  void* rows = nullptr;
  void* columns = nullptr;
  void* target = nullptr;
  void* buffers = nullptr;
  void* partial = nullptr;

 private:
  struct Buffer {
    float *rows, *columns, *blocks;
  };

  Buffer buffer(std::int64_t part) const {
    auto* first = reinterpret_cast<float*>(static_cast<char*>(buffers) +
                                           static_cast<std::size_t>(part) * plan_.buffer_bytes());
    float* columns = first + kPlanes * plan_.chunk * plan_.row_line();
    return {first, columns, columns + kPlanes * plan_.chunk * plan_.column_line()};
  }

  // Sums over some of the tiles go to memory of their own, but for the first.
  Target target_of(std::int64_t part) const {
    const std::int64_t apart = part % plan_.grid.along_tiles;
    if (apart == 0) return {static_cast<float*>(target), plan_.target_row, plan_.tap_row, plan_.tap_column};
    const std::int64_t tap = plan_.row_count() * plan_.column_count();
    return {static_cast<float*>(partial) + (apart - 1) * plan_.partial_elements(), plan_.column_count(),
            3 * tap, tap};
  }

  template <class T>
  Transforms::Read<T> transform_of(const Side& side) const {
    if constexpr (sizeof(T) == 2) {
      return side.is_gradient ? plan_.transforms->gradient_bf16 : plan_.transforms->source_bf16;
    } else {
      return side.is_gradient ? plan_.transforms->gradient_f32 : plan_.transforms->source_f32;
    }
  }

  template <class T>
  void compute(std::int64_t part) const {
    const Range tiles = plan_.grid.tiles(part, plan_.tiles.count());
    const Range panels = plan_.grid.panels(part, plan_.panels());
    const Buffer at = buffer(part);
    Side own = plan_.columns;
    own.image.channels = std::min(panels.last * kPanel, plan_.column_count()) - panels.first * kPanel;
    const T* own_columns = static_cast<const T*>(columns) + panels.first * kPanel;
    std::int64_t first = tiles.first;
    do {  // once at least: a part without tiles adds nothing, but writes that
      const Range chunk{first, std::min(first + plan_.chunk, tiles.last)};
      const Range after{chunk.last, std::min(chunk.last + plan_.chunk, tiles.last)};
      read_tiles(plan_.rows, static_cast<const T*>(rows), chunk, at.rows, plan_.row_line());
      read_tiles(own, own_columns, chunk, at.columns, plan_.column_line());
      const Ahead ahead[] = {
          winograd::pixels_ahead(plan_.tiles, plan_.rows.image, plan_.rows.distance,
                                 static_cast<const T*>(rows), after),
          winograd::pixels_ahead(plan_.tiles, own.image, own.distance, own_columns, after)};
      multiply(part, chunk.count(), own.image.channels, first > tiles.first, chunk.last == tiles.last, ahead,
               at);
      first = chunk.last;
    } while (first < tiles.last);
  }

  template <class T>
  void read_tiles(const Side& side, const T* images, const Range& tiles, float* planes,
                  std::int64_t line) const {
    const Transforms::Read<T> read = transform_of<T>(side);
    for (std::int64_t t = tiles.first; t < tiles.last; ++t, planes += line) {
      const Tiles::Place p = plan_.tiles.place(t);
      read(side.image, images + p.image * side.distance, p.y - side.pad_top, p.x - side.pad_left, planes,
           plan_.chunk * line);
    }
  }

  // All blocks of rows and columns for a chunk of tiles.
  void multiply(std::int64_t part, std::int64_t tiles, std::int64_t columns, bool add, bool last,
                const Ahead ahead[2], const Buffer& at) const {
    const Range panels = plan_.grid.panels(part, plan_.panels());
    const std::int64_t blocks = panels.count() * plan_.row_blocks();
    for (std::int64_t i = 0; i < blocks; ++i) {
      const std::int64_t row = i % plan_.row_blocks() * kRows, column = i / plan_.row_blocks() * kPanel;
      const std::int64_t high = std::min(kRows, plan_.row_count() - row),
                         wide = std::min(kPanel, columns - column);
      float* block = at.blocks + (plan_.in_one_chunk() ? 0 : i) * kPlanes * plan_.block_plane();
      for (std::int64_t p = 0; p < kPlanes; ++p) {
        winograd::Product product{at.rows + p * plan_.chunk * plan_.row_line() + row,
                                  1,
                                  plan_.row_line(),
                                  at.columns + p * plan_.chunk * plan_.column_line() + column,
                                  plan_.column_line(),
                                  block + p * plan_.block_plane(),
                                  kPanel,
                                  high,
                                  wide,
                                  tiles,
                                  add};
        product.ahead[0] = ahead[0].share(blocks * kPlanes, i * kPlanes + p);
        product.ahead[1] = ahead[1].share(blocks * kPlanes, i * kPlanes + p);
        plan_.transforms->multiply(product);
      }
      if (!last) continue;
      const Target to = target_of(part);
      plan_.transforms->collect(block, plan_.block_plane(), high, wide,
                                to.first + row * to.row + panels.first * kPanel + column, to.row, to.tap_row,
                                to.tap_column);
    }
  }

  void add_sums_of_parts() const {
    const convolution::WeightRows weights{
        3, 3, plan_.row_count(), plan_.column_count(), plan_.target_row, plan_.tap_row, plan_.tap_column};
    convolution::add_partial_sums(weights, static_cast<float*>(target), static_cast<const float*>(partial),
                                  plan_.grid.along_tiles - 1);
  }

  const Plan& plan_;
};

struct Places {
  Location rows, columns, target, buffers, partial;
};

class GradientStep : public Step {
 public:
  GradientStep(const Plan& plan, const Places& places) : plan_(plan), places_(places) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundGradient>(plan_);
    binder.address(&bound->rows, places_.rows);
    binder.address(&bound->columns, places_.columns);
    binder.address(&bound->target, places_.target);
    binder.address(&bound->buffers, places_.buffers);
    binder.address(&bound->partial, places_.partial);
    return bound;
  }

 private:
  Plan plan_;
  Places places_;
};

bool all_are(const Dims& list, std::int64_t value) {
  return std::all_of(list.begin(), list.end(), [&](std::int64_t v) { return v == value; });
}

Side side_of(const View& view, const Dims& pads, bool is_gradient) {
  const Image image{view.dims[2], view.dims[3], view.dims[1], view.strides[2], view.strides[3]};
  return {image, view.strides[0], is_gradient ? 0 : pads[0], is_gradient ? 0 : pads[1], is_gradient};
}

bool is_plain_3x3(const Lowering& low) {
  const View& x = low.input(0);
  const View& dy = low.input(1);
  const View& dw = low.output(0);
  const Attrs& attrs = low.attrs();
  return x.dims.size() == 4 && dy.dims.size() == 4 && dw.dims.size() == 4 && low.output_count() == 1 &&
         x.dims[0] == dy.dims[0] && dw.dims[0] == dy.dims[1] && dw.dims[1] == x.dims[1] && dw.dims[2] == 3 &&
         dw.dims[3] == 3 && WeightTarget(dw).fits() && x.dtype == dy.dtype &&
         (x.dtype == DType::Float32 || x.dtype == DType::BFloat16) && x.strides[1] == 1 &&
         dy.strides[1] == 1 && attrs.integer("groups", 1) == 1 &&
         all_are(attrs.integers("strides", {1}), 1) && all_are(attrs.integers("dilations", {1}), 1);
}

Grid grid_of(const Plan& plan) {
  return winograd::cheapest_grid(omp_get_max_threads(), plan.panels(), [&](const Grid& grid) {
    const std::int64_t rows = plan.row_count(), columns = plan.column_count() / grid.along_panels;
    return plan.tiles.count() / grid.along_tiles * winograd::kPatchCost * (rows + columns) +
           rows * columns * kCollectCost + (grid.along_tiles > 1 ? rows * plan.column_count() * kAddCost : 0);
  });
}

std::optional<Plan> make_plan(const Lowering& low) {
  if (!is_plain_3x3(low)) return std::nullopt;
  const View& x = low.input(0);
  const View& dy = low.input(1);
  const WeightTarget target(low.output(0));
  Plan plan;
  plan.transforms = winograd::transforms();
  if (!plan.transforms || x.dims[1] % plan.transforms->lanes || dy.dims[1] % plan.transforms->lanes ||
      low.input(1).elements() == 0) {
    return std::nullopt;
  }
  plan.tiles = Tiles::of(dy.dims[0], dy.dims[2], dy.dims[3]);
  plan.bf16 = x.dtype == DType::BFloat16;
  const Dims pads = low.attrs().integers("pads_begin", {0, 0});
  plan.rows = side_of(x, pads, false);
  plan.columns = side_of(dy, pads, true);
  plan.target_row = target.strides()[1];
  if (target.strides()[0] != 1) {
    std::swap(plan.rows, plan.columns);
    plan.rows_input = 1;
    plan.target_row = target.strides()[0];
  }
  plan.tap_row = target.strides()[2];
  plan.tap_column = target.strides()[3];
  plan.grid = grid_of(plan);
  const std::int64_t chunks = (plan.tiles_of_part() + kMaxChunk - 1) / kMaxChunk;
  plan.chunk = (plan.tiles_of_part() + chunks - 1) / chunks;
  return plan;
}

}  // namespace

void lower_winograd_gradient(Lowering& low) {
  if (!winograd::transforms()) low.reject("Winograd's algorithm needs AVX2");
  const std::optional<Plan> plan = make_plan(low);
  if (!plan) low.reject("it is no gradient of a 3x3 kernel with whole vectors of channels");
  const View& dw = low.output(0);
  const double flops =
      2.0 * static_cast<double>(low.input(1).elements()) * static_cast<double>(dw.elements() / dw.dims[0]);
  low.describe("winograd_4x4:" + std::to_string(plan->transforms->lanes * 32), "acdb", flops);
  Places places;
  places.rows = low.at(low.input(static_cast<std::size_t>(plan->rows_input)));
  places.columns = low.at(low.input(static_cast<std::size_t>(1 - plan->rows_input)));
  const WeightTarget target(dw);
  places.target = target.place(low);
  places.buffers = low.scratch(static_cast<std::size_t>(plan->grid.parts()) * plan->buffer_bytes());
  places.partial = low.scratch(
      static_cast<std::size_t>((plan->grid.along_tiles - 1) * plan->partial_elements()) * sizeof(float));
  low.emit(std::make_unique<GradientStep>(*plan, places));
  target.finish(low, places.target);
}

}  // namespace npu
