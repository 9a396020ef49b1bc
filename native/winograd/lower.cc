// Convolution tasks by Winograd's algorithm.
#include "winograd/lower.h"

#include <omp.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/parallel.h"
#include "runtime/kernel_step.h"
#include "winograd/grid.h"
#include "winograd/winograd.h"

namespace npu {
namespace {

using winograd::Epilogue;
using winograd::Filter;
using winograd::Grid;
using winograd::Image;
using winograd::kPadding;
using winograd::kPanel;
using winograd::kPlanes;
using winograd::Range;
using winograd::Tiles;
using winograd::Transforms;

constexpr std::int64_t kChunkUnit = 6, kLargestChunk = 66;  // tiles

struct Params {
  const Transforms* transforms = nullptr;
  Image source{}, target{};
  std::int64_t source_image = 0, target_image = 0;
  std::int64_t pad_top = 0, pad_left = 0;
  Tiles tiles;
  Grid grid;
  std::int64_t chunk = 0;  // tiles per chunk
  Filter filter{};
  bool constant_filter = true;
  bool bf16 = false, bf16_filter = false;
  bool residual_is_target = false;
  int residual_input = -1, bias_input = -1;
  bool clip = false;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();

  std::int64_t channels() const { return source.channels; }
  std::int64_t outputs() const { return target.channels; }
  std::int64_t panels() const { return (outputs() + kPanel - 1) / kPanel; }
  std::int64_t panel_width(std::int64_t panel) const { return std::min(kPanel, outputs() - panel * kPanel); }
  std::int64_t tiles_of_part() const { return (tiles.count() + grid.along_tiles - 1) / grid.along_tiles; }
  std::int64_t source_row() const { return channels() + kPadding; }
  std::int64_t source_plane() const { return chunk * source_row(); }
  std::int64_t target_plane() const { return chunk * kPanel + kPadding; }
  // Number of transformed weights that a part keeps.
  std::int64_t kept_filter() const {
    const std::int64_t most = (panels() + grid.along_panels - 1) / grid.along_panels;
    return constant_filter ? 0 : most * winograd::filter_panel(channels());
  }
  std::size_t buffer_bytes() const {
    const std::int64_t elements = kPlanes * (source_plane() + target_plane()) + kept_filter();
    return static_cast<std::size_t>((elements + 15) / 16 * 16) * sizeof(float);
  }
};

bool all_are(const Dims& list, std::int64_t value) {
  return std::all_of(list.begin(), list.end(), [&](std::int64_t v) { return v == value; });
}

Image image_of(const View& view) {
  return {view.dims[2], view.dims[3], view.dims[1], view.strides[2], view.strides[3]};
}

// One float for each channel of y.
bool is_channel_vector(const View& view, const View& y) {
  return view.dtype == DType::Float32 && view.dims == Dims{1, y.dims[1], 1, 1} && view.strides[1] == 1;
}

// Additions and clipping, in that order, are what the inverse transform can apply.
bool read_post_ops(const Lowering& low, std::size_t next, Params& params) {
  for (const std::string& text : low.attrs().texts("post_ops")) {
    if (params.clip) return false;
    if (text == "relu") {
      params.clip = true;
      params.low = 0.0f;
    } else if (text.rfind("clip", 0) == 0) {
      const std::size_t first = text.find(','), second = text.find(',', first + 1);
      if (first == std::string::npos || second == std::string::npos) return false;
      params.clip = true;
      std::from_chars(text.data() + first + 1, text.data() + second, params.low);
      std::from_chars(text.data() + second + 1, text.data() + text.size(), params.high);
    } else if (text == "sum" && !params.residual_is_target && params.residual_input < 0) {
      params.residual_is_target = true;
    } else if (text == "add" && params.bias_input < 0 && is_channel_vector(low.input(next), low.output(0))) {
      params.bias_input = static_cast<int>(next++);
    } else if (text == "add" && !params.residual_is_target && params.residual_input < 0) {
      const View& operand = low.input(next);
      const View& y = low.output(0);
      if (operand.dims != y.dims || operand.strides != y.strides || operand.dtype != y.dtype) return false;
      params.residual_input = static_cast<int>(next++);
    } else {
      return false;
    }
  }
  return true;
}

bool bias_is_float(const Lowering& low) {
  if (!low.attrs().flag("has_bias")) return true;
  const View& bias = low.input(2);
  return bias.dtype == DType::Float32 && bias.contiguous() && bias.elements() == low.output(0).dims[1];
}

bool is_plain_3x3(const Lowering& low) {
  const Attrs& attrs = low.attrs();
  const View& w = low.input(1);
  return low.input(0).dims.size() == 4 && low.input(0).dims[0] == low.output(0).dims[0] &&
         w.dims.size() == 4 && w.dims[2] == 3 && w.dims[3] == 3 && bias_is_float(low) &&
         (w.dtype == DType::Float32 || w.dtype == DType::BFloat16) && attrs.integer("groups", 1) == 1 &&
         all_are(attrs.integers("strides", {1}), 1) && all_are(attrs.integers("dilations", {1}), 1) &&
         !attrs.has("src_scale") && !attrs.flag("has_weight_scales") && !attrs.flag("has_gate");
}

// A transposed convolution is a convolution with a kernel rotated by 180 degrees.
Filter filter_of(const View& w, bool transposed) {
  const Dims& s = w.strides;
  if (!transposed) return {w.dims[0], w.dims[1], s[0], s[1], s[2], s[3], 0};
  return {w.dims[1], w.dims[0], s[1], s[0], -s[2], -s[3], 2 * (s[2] + s[3])};
}

// Few channels: transformed sources and results fit the second-level cache. Many: the weights, which are read
// once for each chunk, are what counts.
std::int64_t largest_chunk(const Params& params) {
  if (params.channels() > 256) return kLargestChunk;
  const std::int64_t measured = params.channels() <= 128 ? 36 : 24;  // with a cache of 1 MiB
  const std::int64_t tiles = measured * (loops().l2_bytes >> 10) >> 10;
  return std::clamp(tiles / kChunkUnit * kChunkUnit, kChunkUnit, kLargestChunk);
}

Grid grid_of(const Params& params) {
  const std::int64_t chunk = largest_chunk(params);
  return winograd::cheapest_grid(omp_get_max_threads(), params.panels(), [&](const Grid& grid) {
    const std::int64_t tiles = (params.tiles.count() + grid.along_tiles - 1) / grid.along_tiles;
    const std::int64_t reads = (tiles + chunk - 1) / chunk * winograd::kReadCost;
    const std::int64_t outputs = params.outputs() / grid.along_panels;
    return tiles * winograd::kPatchCost +
           outputs * (reads + (params.constant_filter ? 0 : winograd::kFilterCost));
  });
}

std::optional<Params> make_params(const Lowering& low, bool transposed) {
  if (!is_plain_3x3(low)) return std::nullopt;
  const View& x = low.input(0);
  const View& w = low.input(1);
  const View& y = low.output(0);
  const bool f32 = x.dtype == DType::Float32 && y.dtype == DType::Float32;
  Params params;
  params.bf16 = x.dtype == DType::BFloat16 && y.dtype == DType::BFloat16;
  params.transforms = winograd::transforms();
  if (!params.transforms || !(f32 || params.bf16) || x.strides[1] != 1 || y.strides[1] != 1)
    return std::nullopt;
  const std::int64_t lanes = params.transforms->lanes;
  if (x.dims[1] % lanes || y.dims[1] % lanes || y.elements() == 0) return std::nullopt;
  params.source = image_of(x);
  params.target = image_of(y);
  params.source_image = x.strides[0];
  params.target_image = y.strides[0];
  params.filter = filter_of(w, transposed);
  params.bf16_filter = w.dtype == DType::BFloat16;
  if (params.filter.channels != x.dims[1] || params.filter.outputs != y.dims[1]) return std::nullopt;
  params.constant_filter = low.is_constant(w);
  const Dims pads = low.attrs().integers("pads_begin", {0, 0});
  params.pad_top = transposed ? 2 - pads[0] : pads[0];
  params.pad_left = transposed ? 2 - pads[1] : pads[1];
  params.tiles = Tiles::of(y.dims[0], params.target.height, params.target.width);
  if (low.attrs().flag("has_bias")) params.bias_input = 2;
  if (!read_post_ops(low, params.bias_input < 0 ? 2 : 3, params)) return std::nullopt;
  params.grid = grid_of(params);
  const std::int64_t chunks = (params.tiles_of_part() + largest_chunk(params) - 1) / largest_chunk(params);
  params.chunk = (params.tiles_of_part() + chunks - 1) / chunks;
  return params;
}

class BoundWinograd : public BoundStep {
 public:
  explicit BoundWinograd(const Params& params) : params_(params) {}

  void run(RunState&) override {
    parallel_for(params_.grid.parts(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        if (params_.bf16) {
          compute<std::uint16_t>(part, params_.transforms->source_bf16, params_.transforms->target_bf16);
        } else {
          compute<float>(part, params_.transforms->source_f32, params_.transforms->target_f32);
        }
      }
    });
  }

  void* source = nullptr;
  void* target = nullptr;
  void* residual = nullptr;
  void* bias = nullptr;
  void* filter = nullptr;  // transformed if constant
  void* buffers = nullptr;

 private:
  // Scratch memory of a part: transformed sources and results of a chunk, transformed weights.
  struct Buffer {
    float *sources, *targets, *filter;
  };

  Buffer buffer(std::int64_t part) const {
    auto* first = reinterpret_cast<float*>(static_cast<char*>(buffers) +
                                           static_cast<std::size_t>(part) * params_.buffer_bytes());
    float* targets = first + kPlanes * params_.source_plane();
    return {first, targets, targets + kPlanes * params_.target_plane()};
  }

  template <class T>
  void compute(std::int64_t part, Transforms::Read<T> read, Transforms::Write<T> write) const {
    const Range tiles = params_.grid.tiles(part, params_.tiles.count());
    const Range panels = params_.grid.panels(part, params_.panels());
    const Buffer at = buffer(part);
    for (std::int64_t first = tiles.first; first < tiles.last; first += params_.chunk) {
      const Range chunk{first, std::min(first + params_.chunk, tiles.last)};
      read_tiles<T>(chunk, read, at.sources);
      const Range after{chunk.last, std::min(chunk.last + params_.chunk, tiles.last)};
      for (std::int64_t panel = panels.first; panel < panels.last; ++panel) {
        const Image target_panel{params_.target.height, params_.target.width, params_.panel_width(panel),
                                 params_.target.row, params_.target.pixel};
        Next next;
        next.target = winograd::pixels_ahead(params_.tiles, target_panel, params_.target_image,
                                             static_cast<const T*>(target) + panel * kPanel, chunk);
        if (panel == panels.first)
          next.source = winograd::pixels_ahead(params_.tiles, params_.source, params_.source_image,
                                               static_cast<const T*>(source), after);
        const float* weights = filter_planes(panel, panel - panels.first, first == tiles.first, at);
        multiply(panel, weights, chunk.count(), next, at);
        write_tiles<T>(chunk, panel, write, at.targets);
      }
    }
  }

  template <class T>
  void read_tiles(const Range& tiles, Transforms::Read<T> read, float* planes) const {
    for (std::int64_t t = tiles.first; t < tiles.last; ++t, planes += params_.source_row()) {
      const Tiles::Place p = params_.tiles.place(t);
      read(params_.source, static_cast<const T*>(source) + p.image * params_.source_image,
           p.y - params_.pad_top, p.x - params_.pad_left, planes, params_.source_plane());
    }
  }

  // Memory to prefetch during the products of a panel.
  struct Next {
    winograd::Ahead source, target;
  };

  void multiply(std::int64_t panel, const float* weights, std::int64_t tiles, const Next& next,
                const Buffer& at) const {
    const std::int64_t width = params_.panel_width(panel);
    const std::int64_t plane = winograd::filter_plane(params_.channels(), width);
    for (std::int64_t p = 0; p < kPlanes; ++p) {
      winograd::Product product{at.sources + p * params_.source_plane(),
                                params_.source_row(),
                                1,
                                weights + p * plane,
                                width,
                                at.targets + p * params_.target_plane(),
                                kPanel,
                                tiles,
                                width,
                                params_.channels(),
                                false};
      product.ahead[0] = next.target.share(kPlanes, p);
      product.ahead[1] = next.source.share(kPlanes, p);
      if (!next.source.blocks && p + 1 < kPlanes) {
        product.ahead[1] = {reinterpret_cast<const char*>(product.b + plane), plane * 4, 0, 1};
      }
      params_.transforms->multiply(product);
    }
  }

  // The transformed weights of a panel, made for the first chunk of tiles unless they are constant.
  const float* filter_planes(std::int64_t panel, std::int64_t index, bool first, const Buffer& at) const {
    const std::int64_t stride = winograd::filter_panel(params_.channels());
    if (params_.constant_filter) return static_cast<const float*>(filter) + panel * stride;
    float* planes = at.filter + index * stride;
    if (!first) return planes;
    const Filter part =
        params_.filter.part(panel * kPanel, params_.panel_width(panel), 0, params_.channels());
    const std::int64_t plane = winograd::filter_plane(params_.channels(), params_.panel_width(panel));
    if (params_.bf16_filter) {
      params_.transforms->filter_bf16(part, static_cast<const std::uint16_t*>(filter), planes, plane);
    } else {
      params_.transforms->filter_f32(part, static_cast<const float*>(filter), planes, plane);
    }
    return planes;
  }

  template <class T>
  void write_tiles(const Range& tiles, std::int64_t panel, Transforms::Write<T> write,
                   const float* planes) const {
    const std::int64_t output = panel * kPanel;
    Image image = params_.target;
    image.channels = params_.panel_width(panel);
    const auto* extra = static_cast<const T*>(params_.residual_is_target ? target : residual);
    const Epilogue epilogue{bias ? static_cast<const float*>(bias) + output : nullptr, params_.clip,
                            params_.low, params_.high};
    for (std::int64_t t = tiles.first; t < tiles.last; ++t, planes += kPanel) {
      const Tiles::Place p = params_.tiles.place(t);
      const std::int64_t at = p.image * params_.target_image + output;
      write(image, epilogue, planes, params_.target_plane(), p.y, p.x, extra ? extra + at : nullptr,
            static_cast<T*>(target) + at);
    }
  }

  const Params& params_;
};

using WinogradStep = KernelStep<BoundWinograd, Params>;

Location prepare_weights(Lowering& low, const View& w, const Filter& filter) {
  const bool bf16 = w.dtype == DType::BFloat16;
  const std::int64_t panels = (filter.outputs + kPanel - 1) / kPanel;
  const auto bytes =
      static_cast<std::size_t>(panels * winograd::filter_panel(filter.channels)) * sizeof(float);
  return low.prepared(w, bytes, [=](const char* from, char* to) {
    auto* panels = reinterpret_cast<float*>(to);
    if (bf16) {
      winograd::transform_weights(filter, reinterpret_cast<const std::uint16_t*>(from), panels);
    } else {
      winograd::transform_weights(filter, reinterpret_cast<const float*>(from), panels);
    }
  });
}

}  // namespace

void lower_winograd(Lowering& low, bool transposed) {
  if (!winograd::transforms()) low.reject("Winograd's algorithm needs AVX2");
  const std::optional<Params> params = make_params(low, transposed);
  if (!params)
    low.reject("it is no 3x3 convolution of whole vectors of channels, or has other post-operations");
  const View& y = low.output(0);
  const double pixels = static_cast<double>((transposed ? low.input(0) : y).elements());
  const std::int64_t others = transposed ? params->outputs() : params->channels();
  const double flops = 2.0 * pixels * 9.0 * static_cast<double>(others);
  low.describe("winograd_4x4:" + std::to_string(params->transforms->lanes * 32), "acdb", flops);

  WinogradStep::Places places;
  places.emplace_back(&BoundWinograd::source, low.at(low.input(0)));
  places.emplace_back(&BoundWinograd::target, low.at(y));
  places.emplace_back(&BoundWinograd::filter, params->constant_filter
                                                  ? prepare_weights(low, low.input(1), params->filter)
                                                  : low.at(low.input(1)));
  places.emplace_back(&BoundWinograd::buffers,
                      low.scratch(static_cast<std::size_t>(params->grid.parts()) * params->buffer_bytes()));
  if (params->residual_input >= 0) {
    places.emplace_back(&BoundWinograd::residual,
                        low.at(low.input(static_cast<std::size_t>(params->residual_input))));
  }
  if (params->bias_input >= 0) {
    places.emplace_back(&BoundWinograd::bias,
                        low.at(low.input(static_cast<std::size_t>(params->bias_input))));
  }
  low.emit(std::make_unique<WinogradStep>(*params, std::move(places)));
}

}  // namespace npu
