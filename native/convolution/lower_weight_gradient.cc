// Tasks "conv_grad_weights" as channel-by-channel matrix products.
#include <omp.h>

#include <algorithm>
#include <optional>

#include "convolution/lower.h"
#include "convolution/partial_sums.h"
#include "convolution/weight_gradient.h"
#include "convolution/weight_target.h"
#include "core/parallel.h"
#include "runtime/kernel_step.h"

namespace npu {
namespace {

using namespace convolution;

constexpr std::int64_t kMaxWidth = 4096;  // of an image: a line is multiplied as a whole

// A strided image, channels last.
struct Pixels {
  std::int64_t image, row, column;  // distances in elements
  std::int64_t height, width, channels;
};

// The dimension that threads divide.
enum class Split : std::uint8_t { Pixels, Rows, Columns };

struct Params {
  const GradientKernels* kernels = nullptr;
  Pixels source{}, gradient{};
  std::int64_t images = 0;
  Dims kernel, strides, dilations, pads;
  bool source_has_rows = true;  // the source's channels are the rows of a tap's product
  std::int64_t target_row = 0;  // distances in elements of the weights
  std::int64_t tap_row = 0, tap_column = 0;
  std::int64_t block_lines = 0;  // of the gradient, multiplied at once
  Split split = Split::Pixels;
  std::int64_t parts = 1;

  const Pixels& rows() const { return source_has_rows ? source : gradient; }
  const Pixels& columns() const { return source_has_rows ? gradient : source; }
  std::int64_t steps(std::int64_t pixels) const { return (pixels + kernels->depth - 1) / kernels->depth; }
  std::int64_t tap_elements() const { return source.channels * gradient.channels; }
  std::int64_t partial_elements() const { return kernel[0] * kernel[1] * tap_elements(); }
  std::int64_t lines() const { return images * gradient.height; }
  std::int64_t block_pixels() const { return block_lines * gradient.width; }
  std::int64_t shorter() const { return std::min(source.channels, gradient.channels); }
  // Of one part: a packed side and a group of the other, then the places of pixels, now and next.
  std::int64_t buffer_bytes() const {
    const std::int64_t packed = (shorter() + kGradientColumns) * steps(block_pixels());
    return (packed * 4 + 4 * block_pixels() * 8 + 63) / 64 * 64;
  }
};

Pixels pixels_of(const View& v) {
  return {v.strides[0], v.strides[2], v.strides[3], v.dims[2], v.dims[3], v.dims[1]};
}

struct Range {
  std::int64_t first, last;
  std::int64_t count() const { return std::max<std::int64_t>(last - first, 0); }
};

// The outputs along one axis whose source for a tap is inside the image.
Range seen(std::int64_t offset, std::int64_t stride, std::int64_t size, std::int64_t outputs) {
  const std::int64_t first = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
  const std::int64_t last = size - offset <= 0 ? 0 : (size - offset - 1) / stride + 1;
  return {first, std::min(last, outputs)};
}

// The work of one thread: some of the gradient's lines (those of all images in a row), rows and columns.
struct Part {
  std::int64_t index;
  Range lines, rows, columns;
};

// Locations of the pixel pairs that a tap multiplies.
struct Meeting {
  std::int64_t* source;
  std::int64_t* gradient;
  std::int64_t count = 0;
};

// One side of a product, and a group of channels of the other.
struct Packed {
  float *whole, *group;
};

class BoundWeightGradient : public BoundStep {
 public:
  explicit BoundWeightGradient(const Params& params) : params_(params) {}

  void run(RunState&) override {
    parallel_for(params_.parts, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) compute(part(p));
    });
    if (params_.split == Split::Pixels && params_.parts > 1) add_sums_of_parts();
  }

  void* source = nullptr;
  void* gradient = nullptr;
  void* target = nullptr;
  void* buffers = nullptr;
  void* partial = nullptr;

 private:
  Part part(std::int64_t index) const {
    const std::int64_t rows = params_.rows().channels, columns = params_.columns().channels;
    Part part{index, {0, params_.lines()}, {0, rows}, {0, columns}};
    if (params_.split == Split::Pixels) part.lines = share(params_.lines(), 1, index);
    if (params_.split == Split::Rows) part.rows = share(rows, kGradientRows, index);
    if (params_.split == Split::Columns) part.columns = share(columns, kGradientVector, index);
    return part;
  }

  // One of `parts` ranges of whole blocks.
  Range share(std::int64_t size, std::int64_t block, std::int64_t index) const {
    const std::int64_t blocks = size / block;
    return {blocks * index / params_.parts * block, blocks * (index + 1) / params_.parts * block};
  }

  // The results of all parts but the first go to memory of their own where they are sums over some pixels.
  bool sums_apart(const Part& part) const { return params_.split == Split::Pixels && part.index > 0; }

  float* target_of(const Part& part, std::int64_t tap) const {
    if (sums_apart(part)) {
      return static_cast<float*>(partial) + (part.index - 1) * params_.partial_elements() +
             tap * params_.tap_elements();
    }
    return static_cast<float*>(target) + tap / params_.kernel[1] * params_.tap_row +
           tap % params_.kernel[1] * params_.tap_column;
  }

  // Blocks of lines; all taps of a block while it is cached. Prefetches the next block.
  void compute(const Part& part) {
    auto* first = reinterpret_cast<float*>(static_cast<char*>(buffers) + part.index * params_.buffer_bytes());
    const Packed packed{first, first + params_.shorter() * params_.steps(params_.block_pixels())};
    auto* places = reinterpret_cast<std::int64_t*>(packed.group +
                                                   kGradientColumns * params_.steps(params_.block_pixels()));
    Meeting now{places, places + params_.block_pixels()};
    Meeting next{now.gradient + params_.block_pixels(), now.gradient + 2 * params_.block_pixels()};
    const std::int64_t taps = params_.kernel[0] * params_.kernel[1];
    const std::int64_t blocks = (part.lines.count() + params_.block_lines - 1) / params_.block_lines;
    const std::int64_t to_row = sums_apart(part) ? params_.columns().channels : params_.target_row;
    meet(part, 0, now);
    for (std::int64_t i = 0; i < std::max<std::int64_t>(blocks, 1) * taps; ++i) {
      meet(part, i + 1, next);
      if (now.count || i < taps) {
        multiply(part, now, next, packed, i >= taps,
                 target_of(part, i % taps) + part.rows.first * to_row + part.columns.first, to_row);
      }
      std::swap(now, next);
    }
  }

  // The pixels of the i-th pair of a block and a tap, none beyond the last block.
  void meet(const Part& part, std::int64_t i, Meeting& meeting) const {
    const std::int64_t taps = params_.kernel[0] * params_.kernel[1], tap = i % taps;
    const std::int64_t first = part.lines.first + i / taps * params_.block_lines;
    const std::int64_t last = std::min(first + params_.block_lines, part.lines.last);
    const Pixels &s = params_.source, &g = params_.gradient;
    const std::int64_t offset_y = tap / params_.kernel[1] * params_.dilations[0] - params_.pads[0];
    const std::int64_t offset_x = tap % params_.kernel[1] * params_.dilations[1] - params_.pads[1];
    const Range ys = seen(offset_y, params_.strides[0], s.height, g.height);
    const Range xs = seen(offset_x, params_.strides[1], s.width, g.width);
    meeting.count = 0;
    for (std::int64_t line = first; line < last; ++line) {
      const std::int64_t image = line / g.height, y = line % g.height;
      if (y < ys.first || y >= ys.last) continue;
      const std::int64_t from = image * s.image + (y * params_.strides[0] + offset_y) * s.row;
      for (std::int64_t x = xs.first; x < xs.last; ++x, ++meeting.count) {
        meeting.source[meeting.count] = from + (x * params_.strides[1] + offset_x) * s.column;
        meeting.gradient[meeting.count] = image * g.image + y * g.row + x * g.column;
      }
    }
  }

  GradientSide side(const Meeting& meeting, bool rows) const {
    if (rows == params_.source_has_rows) return {source, meeting.source, meeting.count};
    return {gradient, meeting.gradient, meeting.count};
  }

  // The shorter side is packed as a whole, the other in groups, each just before it is multiplied; the group
  // after it is fetched meanwhile, and a share of what the next pixels need.
  void multiply(const Part& part, const Meeting& now, const Meeting& next, const Packed& packed, bool add,
                float* to, std::int64_t to_row) const {
    const bool by_rows = part.rows.count() >= part.columns.count();
    const Range &all = by_rows ? part.rows : part.columns, &whole = by_rows ? part.columns : part.rows;
    const std::int64_t groups = (all.count() + kGradientColumns - 1) / kGradientColumns;
    params_.kernels->pack(side(now, !by_rows), whole.first, whole.last, by_rows, packed.whole);
    for (std::int64_t g = 0; g < groups; ++g) {
      const Range group = group_of(all, g);
      params_.kernels->pack(side(now, by_rows), group.first, group.last, !by_rows, packed.group);
      const bool last = g + 1 == groups;
      const Range after = group_of(all, last ? 0 : g + 1);
      const GradientAhead ahead[] = {{side(last ? next : now, by_rows), after.first, after.last},
                                     {share_of(side(next, !by_rows), g, groups), whole.first, whole.last}};
      const std::int64_t steps = params_.steps(now.count), at = group.first - all.first;
      if (by_rows) {
        params_.kernels->multiply(packed.group, group.count(), packed.whole, whole.count(), steps, add,
                                  to + at * to_row, to_row, ahead);
      } else {
        params_.kernels->multiply(packed.whole, whole.count(), packed.group, group.count(), steps, add,
                                  to + at, to_row, ahead);
      }
    }
  }

  static Range group_of(const Range& all, std::int64_t index) {
    const std::int64_t first = all.first + index * kGradientColumns;
    return {first, std::min(first + kGradientColumns, all.last)};
  }

  static GradientSide share_of(const GradientSide& side, std::int64_t index, std::int64_t parts) {
    const std::int64_t begin = side.count * index / parts, end = side.count * (index + 1) / parts;
    return {side.image, side.pixels + begin, end - begin};
  }

  void add_sums_of_parts() const {
    const WeightRows weights{params_.kernel[0],          params_.kernel[1],  params_.rows().channels,
                             params_.columns().channels, params_.target_row, params_.tap_row,
                             params_.tap_column};
    add_partial_sums(weights, static_cast<float*>(target), static_cast<const float*>(partial),
                     params_.parts - 1);
  }

  const Params& params_;
};

using WeightGradientStep = KernelStep<BoundWeightGradient, Params>;

bool is_whole_vectors(const View& view) {
  return view.strides[1] == 1 && view.dims[1] % kGradientVector == 0 && view.elements() > 0;
}

// Threads divide the pixels, and their sums are added, or the longer side of the product, and each packs all
// of the other.
Split split_of(const Params& params, bool by_pixels) {
  const std::int64_t rows = params.rows().channels, columns = params.columns().channels;
  if (by_pixels) return Split::Pixels;
  return rows > columns ? Split::Rows : Split::Columns;
}

std::optional<Params> make_params(const Lowering& low) {
  const View& x = low.input(0);
  const View& dy = low.input(1);
  const View& dw = low.output(0);
  const Attrs& attrs = low.attrs();
  if (x.dims.size() != 4 || dy.dims.size() != 4 || dw.dims.size() != 4 || low.output_count() != 1 ||
      x.dims[0] != dy.dims[0] || dw.dims[0] != dy.dims[1] || dw.dims[1] != x.dims[1] ||
      attrs.integer("groups", 1) != 1 || x.dtype != dy.dtype || !WeightTarget(dw).fits() ||
      dy.dims[3] > kMaxWidth || !is_whole_vectors(x) || !is_whole_vectors(dy)) {
    return std::nullopt;
  }
  Params params;
  params.kernels = weight_gradient(x.dtype);
  if (!params.kernels) return std::nullopt;
  params.source = pixels_of(x);
  params.gradient = pixels_of(dy);
  params.images = x.dims[0];
  params.kernel = {dw.dims[2], dw.dims[3]};
  params.strides = attrs.integers("strides", {1, 1});
  params.dilations = attrs.integers("dilations", {1, 1});
  params.pads = attrs.integers("pads_begin", {0, 0});
  const WeightTarget target(dw);
  params.source_has_rows = target.strides()[0] == 1;
  params.target_row = target.strides()[params.source_has_rows ? 1 : 0];
  params.tap_row = target.strides()[2];
  params.tap_column = target.strides()[3];
  params.parts = omp_get_max_threads();
  params.split = split_of(params, attrs.flag("by_pixels", true));
  // Of a product whose panels take half of the cache, where the plan does not tell.
  const std::int64_t step_bytes = 4 * (params.shorter() + kGradientColumns);
  const std::int64_t pixels =
      attrs.integer("block_pixels", loops().l2_bytes / 2 / step_bytes * params.kernels->depth);
  params.block_lines =
      std::clamp<std::int64_t>(pixels / params.gradient.width, 1, std::max<std::int64_t>(params.lines(), 1));
  return params;
}

}  // namespace

void lower_weight_gradient(Lowering& low) {
  const std::optional<Params> params = make_params(low);
  if (!params)
    low.reject(
        "it takes channels-last images with multiples of 16 channels, and AVX2, for bfloat16 its products of "
        "AVX-512");
  const View& dw = low.output(0);
  const double flops =
      2.0 * static_cast<double>(low.input(1).elements()) * static_cast<double>(dw.elements() / dw.dims[0]);
  low.describe(with_vectors("weight_gradient"), "acdb", flops);
  WeightGradientStep::Places places;
  places.emplace_back(&BoundWeightGradient::source, low.at(low.input(0)));
  places.emplace_back(&BoundWeightGradient::gradient, low.at(low.input(1)));
  const WeightTarget target(dw);
  const Location place = target.place(low);
  places.emplace_back(&BoundWeightGradient::target, place);
  places.emplace_back(&BoundWeightGradient::buffers,
                      low.scratch(static_cast<std::size_t>(params->parts * params->buffer_bytes())));
  places.emplace_back(
      &BoundWeightGradient::partial,
      low.scratch(params->split == Split::Pixels
                      ? static_cast<std::size_t>((params->parts - 1) * params->partial_elements()) *
                            sizeof(float)
                      : 0));
  low.emit(std::make_unique<WeightGradientStep>(*params, std::move(places)));
  target.finish(low, place);
}

}  // namespace npu
