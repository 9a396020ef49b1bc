// Convolution tasks by Winograd's algorithm.
#include "winograd/lower.h"

#include <omp.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "core/parallel.h"
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

struct Plan {
  const Transforms* transforms = nullptr;
  Image source{}, target{};
  std::int64_t source_image = 0, target_image = 0;
  std::int64_t pad_top = 0, pad_left = 0;
  Tiles tiles;
  Grid grid;
  std::int64_t chunk = 0;  // tiles worked on at once
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
  // Elements of the weights that a part keeps transformed.
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
bool read_post_ops(const Lowering& low, std::size_t next, Plan& plan) {
  for (const std::string& text : low.attrs().texts("post_ops")) {
    if (plan.clip) return false;
    if (text == "relu") {
      plan.clip = true;
      plan.low = 0.0f;
    } else if (text.rfind("clip", 0) == 0) {
      const std::size_t first = text.find(','), second = text.find(',', first + 1);
      if (first == std::string::npos || second == std::string::npos) return false;
      plan.clip = true;
      std::from_chars(text.data() + first + 1, text.data() + second, plan.low);
      std::from_chars(text.data() + second + 1, text.data() + text.size(), plan.high);
    } else if (text == "sum" && !plan.residual_is_target && plan.residual_input < 0) {
      plan.residual_is_target = true;
    } else if (text == "add" && plan.bias_input < 0 && is_channel_vector(low.input(next), low.output(0))) {
      plan.bias_input = static_cast<int>(next++);
    } else if (text == "add" && !plan.residual_is_target && plan.residual_input < 0) {
      const View& operand = low.input(next);
      const View& y = low.output(0);
      if (operand.dims != y.dims || operand.strides != y.strides || operand.dtype != y.dtype) return false;
      plan.residual_input = static_cast<int>(next++);
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

// A transposed convolution is one with its kernel turned by half a turn.
Filter filter_of(const View& w, bool transposed) {
  const Dims& s = w.strides;
  if (!transposed) return {w.dims[0], w.dims[1], s[0], s[1], s[2], s[3], 0};
  return {w.dims[1], w.dims[0], s[1], s[0], -s[2], -s[3], 2 * (s[2] + s[3])};
}

// Few channels: transformed sources and results fit the second-level cache. Many: the weights, which are read
// once for each chunk, are what counts.
std::int64_t largest_chunk(const Plan& plan) {
  if (plan.channels() <= 128) return 36;
  return plan.channels() <= 256 ? 24 : 66;
}

Grid grid_of(const Plan& plan) {
  const std::int64_t chunk = largest_chunk(plan);
  return winograd::cheapest_grid(omp_get_max_threads(), plan.panels(), [&](const Grid& grid) {
    const std::int64_t tiles = (plan.tiles.count() + grid.along_tiles - 1) / grid.along_tiles;
    const std::int64_t reads = (tiles + chunk - 1) / chunk * winograd::kReadCost;
    const std::int64_t outputs = plan.outputs() / grid.along_panels;
    return tiles * winograd::kPatchCost +
           outputs * (reads + (plan.constant_filter ? 0 : winograd::kFilterCost));
  });
}

std::optional<Plan> make_plan(const Lowering& low, bool transposed) {
  if (!is_plain_3x3(low)) return std::nullopt;
  const View& x = low.input(0);
  const View& w = low.input(1);
  const View& y = low.output(0);
  const bool f32 = x.dtype == DType::Float32 && y.dtype == DType::Float32;
  Plan plan;
  plan.bf16 = x.dtype == DType::BFloat16 && y.dtype == DType::BFloat16;
  plan.transforms = winograd::transforms();
  if (!plan.transforms || !(f32 || plan.bf16) || x.strides[1] != 1 || y.strides[1] != 1) return std::nullopt;
  const std::int64_t lanes = plan.transforms->lanes;
  if (x.dims[1] % lanes || y.dims[1] % lanes || y.elements() == 0) return std::nullopt;
  plan.source = image_of(x);
  plan.target = image_of(y);
  plan.source_image = x.strides[0];
  plan.target_image = y.strides[0];
  plan.filter = filter_of(w, transposed);
  plan.bf16_filter = w.dtype == DType::BFloat16;
  if (plan.filter.channels != x.dims[1] || plan.filter.outputs != y.dims[1]) return std::nullopt;
  plan.constant_filter = low.is_constant(w);
  const Dims pads = low.attrs().integers("pads_begin", {0, 0});
  plan.pad_top = transposed ? 2 - pads[0] : pads[0];
  plan.pad_left = transposed ? 2 - pads[1] : pads[1];
  plan.tiles = Tiles::of(y.dims[0], plan.target.height, plan.target.width);
  if (low.attrs().flag("has_bias")) plan.bias_input = 2;
  if (!read_post_ops(low, plan.bias_input < 0 ? 2 : 3, plan)) return std::nullopt;
  plan.grid = grid_of(plan);
  const std::int64_t chunks = (plan.tiles_of_part() + largest_chunk(plan) - 1) / largest_chunk(plan);
  plan.chunk = (plan.tiles_of_part() + chunks - 1) / chunks;
  return plan;
}

class BoundWinograd : public BoundStep {
 public:
  explicit BoundWinograd(const Plan& plan) : plan_(plan) {}

  void run(RunState&) override {
    parallel_for(plan_.grid.parts(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) {
        if (plan_.bf16) {
          compute<std::uint16_t>(part, plan_.transforms->source_bf16, plan_.transforms->target_bf16);
        } else {
          compute<float>(part, plan_.transforms->source_f32, plan_.transforms->target_f32);
        }
      }
    });
  }

  void* source = nullptr;
  void* target = nullptr;
  void* residual = nullptr;
  void* bias = nullptr;
  void* filter = nullptr;  // transformed where it is constant
  void* buffers = nullptr;

 private:
  // What a part works in: transformed sources and results of a chunk, transformed weights.
  struct Buffer {
    float *sources, *targets, *filter;
  };

  Buffer buffer(std::int64_t part) const {
    auto* first = reinterpret_cast<float*>(static_cast<char*>(buffers) +
                                           static_cast<std::size_t>(part) * plan_.buffer_bytes());
    float* targets = first + kPlanes * plan_.source_plane();
    return {first, targets, targets + kPlanes * plan_.target_plane()};
  }

  template <class T>
  void compute(std::int64_t part, Transforms::Read<T> read, Transforms::Write<T> write) const {
    const Range tiles = plan_.grid.tiles(part, plan_.tiles.count());
    const Range panels = plan_.grid.panels(part, plan_.panels());
    const Buffer at = buffer(part);
    for (std::int64_t first = tiles.first; first < tiles.last; first += plan_.chunk) {
      const Range chunk{first, std::min(first + plan_.chunk, tiles.last)};
      read_tiles<T>(chunk, read, at.sources);
      const Range after{chunk.last, std::min(chunk.last + plan_.chunk, tiles.last)};
      for (std::int64_t panel = panels.first; panel < panels.last; ++panel) {
        const Image target_panel{plan_.target.height, plan_.target.width, plan_.panel_width(panel),
                                 plan_.target.row, plan_.target.pixel};
        Next next;
        next.target = winograd::pixels_ahead(plan_.tiles, target_panel, plan_.target_image,
                                             static_cast<const T*>(target) + panel * kPanel, chunk);
        if (panel == panels.first)
          next.source = winograd::pixels_ahead(plan_.tiles, plan_.source, plan_.source_image,
                                               static_cast<const T*>(source), after);
        const float* weights = filter_planes(panel, panel - panels.first, first == tiles.first, at);
        multiply(panel, weights, chunk.count(), next, at);
        write_tiles<T>(chunk, panel, write, at.targets);
      }
    }
  }

  template <class T>
  void read_tiles(const Range& tiles, Transforms::Read<T> read, float* planes) const {
    for (std::int64_t t = tiles.first; t < tiles.last; ++t, planes += plan_.source_row()) {
      const Tiles::Place p = plan_.tiles.place(t);
      read(plan_.source, static_cast<const T*>(source) + p.image * plan_.source_image, p.y - plan_.pad_top,
           p.x - plan_.pad_left, planes, plan_.source_plane());
    }
  }

  // What is read and written after the products of a panel.
  struct Next {
    winograd::Ahead source, target;
  };

  void multiply(std::int64_t panel, const float* weights, std::int64_t tiles, const Next& next,
                const Buffer& at) const {
    const std::int64_t width = plan_.panel_width(panel);
    const std::int64_t plane = winograd::filter_plane(plan_.channels(), width);
    for (std::int64_t p = 0; p < kPlanes; ++p) {
      winograd::Product product{at.sources + p * plan_.source_plane(),
                                plan_.source_row(),
                                1,
                                weights + p * plane,
                                width,
                                at.targets + p * plan_.target_plane(),
                                kPanel,
                                tiles,
                                width,
                                plan_.channels(),
                                false};
      product.ahead[0] = next.target.share(kPlanes, p);
      product.ahead[1] = next.source.share(kPlanes, p);
      if (!next.source.blocks && p + 1 < kPlanes) {
        product.ahead[1] = {reinterpret_cast<const char*>(product.b + plane), plane * 4, 0, 1};
      }
      plan_.transforms->multiply(product);
    }
  }

  // The transformed weights of a panel, made for the first chunk of tiles unless they are constant.
  const float* filter_planes(std::int64_t panel, std::int64_t index, bool first, const Buffer& at) const {
    const std::int64_t stride = winograd::filter_panel(plan_.channels());
    if (plan_.constant_filter) return static_cast<const float*>(filter) + panel * stride;
    float* planes = at.filter + index * stride;
    if (!first) return planes;
    const Filter part = plan_.filter.part(panel * kPanel, plan_.panel_width(panel), 0, plan_.channels());
    const std::int64_t plane = winograd::filter_plane(plan_.channels(), plan_.panel_width(panel));
    if (plan_.bf16_filter) {
      plan_.transforms->filter_bf16(part, static_cast<const std::uint16_t*>(filter), planes, plane);
    } else {
      plan_.transforms->filter_f32(part, static_cast<const float*>(filter), planes, plane);
    }
    return planes;
  }

  template <class T>
  void write_tiles(const Range& tiles, std::int64_t panel, Transforms::Write<T> write,
                   const float* planes) const {
    const std::int64_t output = panel * kPanel;
    Image image = plan_.target;
    image.channels = plan_.panel_width(panel);
    const auto* extra = static_cast<const T*>(plan_.residual_is_target ? target : residual);
    const Epilogue epilogue{bias ? static_cast<const float*>(bias) + output : nullptr, plan_.clip, plan_.low,
                            plan_.high};
    for (std::int64_t t = tiles.first; t < tiles.last; ++t, planes += kPanel) {
      const Tiles::Place p = plan_.tiles.place(t);
      const std::int64_t at = p.image * plan_.target_image + output;
      write(image, epilogue, planes, plan_.target_plane(), p.y, p.x, extra ? extra + at : nullptr,
            static_cast<T*>(target) + at);
    }
  }

  const Plan& plan_;
};

struct Places {
  Location source, target, filter, buffers;
  std::optional<Location> residual, bias;
};

class WinogradStep : public Step {
 public:
  WinogradStep(const Plan& plan, const Places& places) : plan_(plan), places_(places) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundWinograd>(plan_);
    binder.address(&bound->source, places_.source);
    binder.address(&bound->target, places_.target);
    binder.address(&bound->filter, places_.filter);
    binder.address(&bound->buffers, places_.buffers);
    if (places_.residual) binder.address(&bound->residual, *places_.residual);
    if (places_.bias) binder.address(&bound->bias, *places_.bias);
    return bound;
  }

 private:
  Plan plan_;
  Places places_;
};

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
  const std::optional<Plan> plan = make_plan(low, transposed);
  if (!plan)
    low.reject("it is no 3x3 convolution of whole vectors of channels, or has other post-operations");
  const View& y = low.output(0);
  const double pixels = static_cast<double>((transposed ? low.input(0) : y).elements());
  const std::int64_t others = transposed ? plan->outputs() : plan->channels();
  const double flops = 2.0 * pixels * 9.0 * static_cast<double>(others);
  low.describe("winograd_4x4:" + std::to_string(plan->transforms->lanes * 32), "acdb", flops);

  Places places;
  places.source = low.at(low.input(0));
  places.target = low.at(y);
  places.filter =
      plan->constant_filter ? prepare_weights(low, low.input(1), plan->filter) : low.at(low.input(1));
  places.buffers = low.scratch(static_cast<std::size_t>(plan->grid.parts()) * plan->buffer_bytes());
  if (plan->residual_input >= 0) {
    places.residual = low.at(low.input(static_cast<std::size_t>(plan->residual_input)));
  }
  if (plan->bias_input >= 0) {
    places.bias = low.at(low.input(static_cast<std::size_t>(plan->bias_input)));
  }
  low.emit(std::make_unique<WinogradStep>(*plan, places));
}

}  // namespace npu
