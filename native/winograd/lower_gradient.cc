// Gradients of convolutions' weights by Winograd's algorithm.
#include <omp.h>

#include <algorithm>
#include <optional>

#include "convolution/partial_sums.h"
#include "convolution/weight_target.h"
#include "core/parallel.h"
#include "runtime/kernel_step.h"
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

constexpr std::int64_t kRows = 48;  // of the weights, computed at once for a panel of columns
constexpr std::int64_t kTileBytes =
    kPlanes * (kRows + kPanel) * 4;                       // of a tile's rows and columns, transformed
constexpr std::int64_t kCollectCost = 12, kAddCost = 15;  // instructions for each weight

// One side of the products: the source, or the gradient.
struct Side {
  Image image{};
  std::int64_t distance = 0;  // of images, in elements
  std::int64_t pad_top = 0, pad_left = 0;
  bool is_gradient = false;
};

struct Params {
  const Transforms* transforms = nullptr;
  bool bf16 = false;
  Side rows, columns;  // the columns' channels are contiguous in the weights
  int rows_input = 0;
  Tiles tiles;
  Grid grid;
  std::int64_t chunk = 0;                                    // tiles per chunk
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
  // Sums completed by one chunk need the memory of one block only.
  bool in_one_chunk() const { return tiles_of_part() <= chunk; }
  std::int64_t blocks_kept() const { return in_one_chunk() ? 1 : row_blocks() * panels_of_part(); }
  std::int64_t partial_elements() const { return 9 * row_count() * column_count(); }
  std::size_t buffer_bytes() const {
    const std::int64_t elements =
        kPlanes * (chunk * (row_line() + column_line()) + blocks_kept() * block_plane());
    return static_cast<std::size_t>((elements + 15) / 16 * 16) * sizeof(float);
  }
};

// Destination of a part's results.
struct Target {
  float* first;
  std::int64_t row, tap_row, tap_column;
};

class BoundGradient : public BoundStep {
 public:
  explicit BoundGradient(const Params& params) : params_(params) {}

  void run(RunState&) override {
    parallel_for(params_.grid.parts(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        params_.bf16 ? compute<std::uint16_t>(part) : compute<float>(part);
      }
    });
    if (params_.grid.along_tiles > 1) add_sums_of_parts();
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
                                           static_cast<std::size_t>(part) * params_.buffer_bytes());
    float* columns = first + kPlanes * params_.chunk * params_.row_line();
    return {first, columns, columns + kPlanes * params_.chunk * params_.column_line()};
  }

  // Partial sums go to separate memory, except the first.
  Target target_of(std::int64_t part) const {
    const std::int64_t apart = part % params_.grid.along_tiles;
    if (apart == 0)
      return {static_cast<float*>(target), params_.target_row, params_.tap_row, params_.tap_column};
    const std::int64_t tap = params_.row_count() * params_.column_count();
    return {static_cast<float*>(partial) + (apart - 1) * params_.partial_elements(), params_.column_count(),
            3 * tap, tap};
  }

  template <class T>
  Transforms::Read<T> transform_of(const Side& side) const {
    if constexpr (sizeof(T) == 2) {
      return side.is_gradient ? params_.transforms->gradient_bf16 : params_.transforms->source_bf16;
    } else {
      return side.is_gradient ? params_.transforms->gradient_f32 : params_.transforms->source_f32;
    }
  }

  template <class T>
  void compute(std::int64_t part) const {
    const Range tiles = params_.grid.tiles(part, params_.tiles.count());
    const Range panels = params_.grid.panels(part, params_.panels());
    const Buffer at = buffer(part);
    Side own = params_.columns;
    own.image.channels = std::min(panels.last * kPanel, params_.column_count()) - panels.first * kPanel;
    const T* own_columns = static_cast<const T*>(columns) + panels.first * kPanel;
    std::int64_t first = tiles.first;
    do {  // at least once: a part without tiles writes zeros
      const Range chunk{first, std::min(first + params_.chunk, tiles.last)};
      const Range after{chunk.last, std::min(chunk.last + params_.chunk, tiles.last)};
      read_tiles(params_.rows, static_cast<const T*>(rows), chunk, at.rows, params_.row_line());
      read_tiles(own, own_columns, chunk, at.columns, params_.column_line());
      const Ahead ahead[] = {
          winograd::pixels_ahead(params_.tiles, params_.rows.image, params_.rows.distance,
                                 static_cast<const T*>(rows), after),
          winograd::pixels_ahead(params_.tiles, own.image, own.distance, own_columns, after)};
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
      const Tiles::Place p = params_.tiles.place(t);
      read(side.image, images + p.image * side.distance, p.y - side.pad_top, p.x - side.pad_left, planes,
           params_.chunk * line);
    }
  }

  // All blocks of rows and columns for a chunk of tiles.
  void multiply(std::int64_t part, std::int64_t tiles, std::int64_t columns, bool add, bool last,
                const Ahead ahead[2], const Buffer& at) const {
    const Range panels = params_.grid.panels(part, params_.panels());
    const std::int64_t blocks = panels.count() * params_.row_blocks();
    for (std::int64_t i = 0; i < blocks; ++i) {
      const std::int64_t row = i % params_.row_blocks() * kRows, column = i / params_.row_blocks() * kPanel;
      const std::int64_t high = std::min(kRows, params_.row_count() - row),
                         wide = std::min(kPanel, columns - column);
      float* block = at.blocks + (params_.in_one_chunk() ? 0 : i) * kPlanes * params_.block_plane();
      for (std::int64_t p = 0; p < kPlanes; ++p) {
        winograd::Product product{at.rows + p * params_.chunk * params_.row_line() + row,
                                  1,
                                  params_.row_line(),
                                  at.columns + p * params_.chunk * params_.column_line() + column,
                                  params_.column_line(),
                                  block + p * params_.block_plane(),
                                  kPanel,
                                  high,
                                  wide,
                                  tiles,
                                  add};
        product.ahead[0] = ahead[0].share(blocks * kPlanes, i * kPlanes + p);
        product.ahead[1] = ahead[1].share(blocks * kPlanes, i * kPlanes + p);
        params_.transforms->multiply(product);
      }
      if (!last) continue;
      const Target to = target_of(part);
      params_.transforms->collect(block, params_.block_plane(), high, wide,
                                  to.first + row * to.row + panels.first * kPanel + column, to.row,
                                  to.tap_row, to.tap_column);
    }
  }

  void add_sums_of_parts() const {
    const convolution::WeightRows weights{3,
                                          3,
                                          params_.row_count(),
                                          params_.column_count(),
                                          params_.target_row,
                                          params_.tap_row,
                                          params_.tap_column};
    convolution::add_partial_sums(weights, static_cast<float*>(target), static_cast<const float*>(partial),
                                  params_.grid.along_tiles - 1);
  }

  const Params& params_;
};

using GradientStep = KernelStep<BoundGradient, Params>;

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

Grid grid_of(const Params& params) {
  return winograd::cheapest_grid(omp_get_max_threads(), params.panels(), [&](const Grid& grid) {
    const std::int64_t rows = params.row_count(), columns = params.column_count() / grid.along_panels;
    return params.tiles.count() / grid.along_tiles * winograd::kPatchCost * (rows + columns) +
           rows * columns * kCollectCost +
           (grid.along_tiles > 1 ? rows * params.column_count() * kAddCost : 0);
  });
}

std::optional<Params> make_params(const Lowering& low) {
  if (!is_plain_3x3(low)) return std::nullopt;
  const View& x = low.input(0);
  const View& dy = low.input(1);
  const WeightTarget target(low.output(0));
  Params params;
  params.transforms = winograd::transforms();
  if (!params.transforms || x.dims[1] % params.transforms->lanes || dy.dims[1] % params.transforms->lanes ||
      low.input(1).elements() == 0) {
    return std::nullopt;
  }
  params.tiles = Tiles::of(dy.dims[0], dy.dims[2], dy.dims[3]);
  params.bf16 = x.dtype == DType::BFloat16;
  const Dims pads = low.attrs().integers("pads_begin", {0, 0});
  params.rows = side_of(x, pads, false);
  params.columns = side_of(dy, pads, true);
  params.target_row = target.strides()[1];
  if (target.strides()[0] != 1) {
    std::swap(params.rows, params.columns);
    params.rows_input = 1;
    params.target_row = target.strides()[0];
  }
  params.tap_row = target.strides()[2];
  params.tap_column = target.strides()[3];
  params.grid = grid_of(params);
  const std::int64_t most =
      std::max<std::int64_t>(loops().l2_bytes / kTileBytes, 1);  // that the second-level cache holds
  const std::int64_t chunks = (params.tiles_of_part() + most - 1) / most;
  params.chunk = (params.tiles_of_part() + chunks - 1) / chunks;
  return params;
}

}  // namespace

void lower_winograd_gradient(Lowering& low) {
  if (!winograd::transforms()) low.reject("Winograd's algorithm needs AVX2");
  const std::optional<Params> params = make_params(low);
  if (!params) low.reject("it is no gradient of a 3x3 kernel with whole vectors of channels");
  const View& dw = low.output(0);
  const double flops =
      2.0 * static_cast<double>(low.input(1).elements()) * static_cast<double>(dw.elements() / dw.dims[0]);
  low.describe("winograd_4x4:" + std::to_string(params->transforms->lanes * 32), "acdb", flops);
  GradientStep::Places places;
  places.emplace_back(&BoundGradient::rows, low.at(low.input(static_cast<std::size_t>(params->rows_input))));
  places.emplace_back(&BoundGradient::columns,
                      low.at(low.input(static_cast<std::size_t>(1 - params->rows_input))));
  const WeightTarget target(dw);
  const Location place = target.place(low);
  places.emplace_back(&BoundGradient::target, place);
  places.emplace_back(&BoundGradient::buffers,
                      low.scratch(static_cast<std::size_t>(params->grid.parts()) * params->buffer_bytes()));
  places.emplace_back(
      &BoundGradient::partial,
      low.scratch(static_cast<std::size_t>((params->grid.along_tiles - 1) * params->partial_elements()) *
                  sizeof(float)));
  low.emit(std::make_unique<GradientStep>(*params, std::move(places)));
  target.finish(low, place);
}

}  // namespace npu
