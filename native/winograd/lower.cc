// Convolution tasks that run as Winograd: which ones, and their step.
#include "winograd/lower.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <vector>

#include "core/errors.h"
#include "core/parallel.h"
#include "onednn/engine.h"
#include "onednn/primitive.h"
#include "winograd/winograd.h"

namespace npu {
namespace {

using winograd::Epilogue;
using winograd::Filter;
using winograd::Image;
using winograd::kPlanes;
using winograd::kTile;
using winograd::Transforms;

constexpr std::int64_t kMinTiles = 12;          // fewer make the products a matter of reading weights
constexpr std::int64_t kMinTilesVariable = 32;  // the weights are transformed in every run
constexpr std::int64_t kMinTilesBf16 = 40;      // direct convolution is twice as fast in bfloat16
constexpr std::int64_t kMinChannels = 32;       // fewer make the transforms dominate
constexpr std::int64_t kChunkBytes = 6 << 20;   // transformed data of the tiles worked on at once
constexpr std::int64_t kPlanePadding = 16;      // keeps the planes from falling into the same cache sets
constexpr double kMinCover = 0.5;               // share of the computed outputs that is wanted

std::int64_t tiles_along(std::int64_t size) { return (size + kTile - 1) / kTile; }

struct Plan {
  const Transforms* transforms = nullptr;
  Image source{}, target{};
  std::int64_t batch = 0, source_image = 0, target_image = 0;
  std::int64_t pad_top = 0, pad_left = 0;
  std::int64_t rows = 0, columns = 0, chunk = 0;
  std::int64_t source_plane = 0, target_plane = 0;
  Filter filter{};
  bool constant_filter = true;
  std::int64_t filter_plane = 0;
  bool bf16 = false;
  bool residual_is_target = false;
  int residual_input = -1, bias_input = -1;
  bool clip = false;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();

  std::int64_t tiles() const { return batch * rows * columns; }
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
  return !low.attrs().flag("has_bias") || (low.input(2).dtype == DType::Float32 && low.input(2).contiguous());
}

bool is_plain_3x3(const Lowering& low) {
  const Attrs& attrs = low.attrs();
  const View& w = low.input(1);
  return low.input(0).dims.size() == 4 && w.dims.size() == 4 && w.dims[2] == 3 && w.dims[3] == 3 &&
         bias_is_float(low) && (w.dtype == DType::Float32 || w.dtype == DType::BFloat16) &&
         attrs.integer("groups", 1) == 1 && all_are(attrs.integers("strides", {1}), 1) &&
         all_are(attrs.integers("dilations", {1}), 1) && !attrs.has("src_scale") &&
         !attrs.flag("has_weight_scales") && !attrs.flag("has_gate") && low.may_save_arithmetic();
}

// A transposed convolution is one with its kernel turned by half a turn.
Filter filter_of(const View& w, bool transposed) {
  const Dims& s = w.strides;
  if (!transposed) return {w.dims[0], w.dims[1], s[0], s[1], s[2], s[3], 0};
  return {w.dims[1], w.dims[0], s[1], s[0], -s[2], -s[3], 2 * (s[2] + s[3])};
}

std::int64_t fewest_tiles(const Plan& plan) {
  if (plan.bf16) return kMinTilesBf16;
  return plan.constant_filter ? kMinTiles : kMinTilesVariable;
}

std::optional<Plan> make_plan(const Lowering& low, bool transposed) {
  if (!is_plain_3x3(low)) return std::nullopt;
  const View& x = low.input(0);
  const View& y = low.output(0);
  const bool f32 = x.dtype == DType::Float32 && y.dtype == DType::Float32;
  Plan plan;
  plan.bf16 = x.dtype == DType::BFloat16 && y.dtype == DType::BFloat16;
  plan.transforms = winograd::transforms();
  if (!plan.transforms || !(f32 || plan.bf16) || x.strides[1] != 1 || y.strides[1] != 1) return std::nullopt;
  const std::int64_t lanes = plan.transforms->lanes;
  if (x.dims[1] % lanes || y.dims[1] % lanes || std::min(x.dims[1], y.dims[1]) < kMinChannels)
    return std::nullopt;
  plan.source = image_of(x);
  plan.target = image_of(y);
  plan.batch = y.dims[0];
  plan.source_image = x.strides[0];
  plan.target_image = y.strides[0];
  plan.filter = filter_of(low.input(1), transposed);
  if (plan.filter.channels != x.dims[1] || plan.filter.outputs != y.dims[1]) return std::nullopt;
  plan.constant_filter = low.is_constant(low.input(1));
  // In bfloat16 the direct convolution is as fast as this with the transform of the weights.
  if (!plan.constant_filter && (plan.bf16 || low.input(1).dtype != DType::Float32)) return std::nullopt;
  plan.filter_plane = x.dims[1] * y.dims[1] + (plan.constant_filter ? 0 : kPlanePadding);
  const Dims pads = low.attrs().integers("pads_begin", {0, 0});
  plan.pad_top = transposed ? 2 - pads[0] : pads[0];
  plan.pad_left = transposed ? 2 - pads[1] : pads[1];
  plan.rows = tiles_along(plan.target.height);
  plan.columns = tiles_along(plan.target.width);
  const double cover = static_cast<double>(plan.batch * plan.target.height * plan.target.width) /
                       static_cast<double>(plan.tiles() * kTile * kTile);
  if (plan.tiles() < fewest_tiles(plan) || cover < kMinCover) return std::nullopt;
  if (low.attrs().flag("has_bias")) plan.bias_input = 2;
  if (!read_post_ops(low, plan.bias_input < 0 ? 2 : 3, plan)) return std::nullopt;
  // Large weights are read anew for each chunk: their quarter is a chunk at least.
  const std::int64_t chunk_bytes = std::max(kChunkBytes, kPlanes * 4 * plan.filter_plane / 4);
  const std::int64_t row = kPlanes * 4 * (x.dims[1] + y.dims[1]);
  plan.chunk = std::min(plan.tiles(), std::max<std::int64_t>(32, chunk_bytes / row));
  plan.source_plane = plan.chunk * x.dims[1] + kPlanePadding;
  plan.target_plane = plan.chunk * y.dims[1] + kPlanePadding;
  return plan;
}

// The 36 products for a number of tiles.
struct Products {
  dnnl::matmul primitive;
  Desc source, weights, target, scratchpad;
};

Desc planes_desc(std::int64_t tiles, std::int64_t channels, std::int64_t plane) {
  return Desc({kPlanes, tiles, channels}, dnnl::memory::data_type::f32, Dims{plane, channels, 1});
}

// Constants take the layout that the products like best.
Desc filter_desc(const Plan& plan) {
  const Dims dims = {kPlanes, plan.source.channels, plan.target.channels};
  constexpr auto type = dnnl::memory::data_type::f32;
  if (plan.constant_filter) return Desc(dims, type, dnnl::memory::format_tag::any);
  return Desc(dims, type, Dims{plan.filter_plane, dims[2], 1});
}

dnnl::matmul::primitive_desc products_desc(const Plan& plan, std::int64_t tiles, const Desc& weights) {
  return {onednn_engine(), planes_desc(tiles, plan.source.channels, plan.source_plane), weights,
          planes_desc(tiles, plan.target.channels, plan.target_plane), base_attr()};
}

class BoundWinograd : public BoundStep {
 public:
  BoundWinograd(const Plan& plan, const std::string& task) : plan_(plan), task_(task) {}

  void run(RunState& state) override {
    if (!plan_.constant_filter) transform_filter();
    for (std::int64_t first = 0; first < plan_.tiles(); first += plan_.chunk) {
      const std::int64_t count = std::min(plan_.chunk, plan_.tiles() - first);
      const auto& args = count == plan_.chunk ? full_args : rest_args;
      plan_.bf16 ? read<std::uint16_t>(first, count, plan_.transforms->source_bf16)
                 : read<float>(first, count, plan_.transforms->source_f32);
      const dnnl_status_t status = dnnl_primitive_execute(count == plan_.chunk ? full : rest, state.stream,
                                                          static_cast<int>(args.size()), args.data());
      if (status != dnnl_success) throw TaskError("task '" + task_ + "': oneDNN failed in the products");
      plan_.bf16 ? write<std::uint16_t>(first, count, plan_.transforms->target_bf16)
                 : write<float>(first, count, plan_.transforms->target_f32);
    }
  }

  void* source = nullptr;
  void* target = nullptr;
  void* residual = nullptr;
  void* bias = nullptr;
  void* filter = nullptr;
  void* filter_planes = nullptr;
  void* source_planes = nullptr;
  void* target_planes = nullptr;
  dnnl_primitive_t full = nullptr, rest = nullptr;
  std::vector<dnnl_exec_arg_t> full_args, rest_args;

 private:
  struct Place {
    std::int64_t image, y, x;
  };

  Place place(std::int64_t tile) const {
    const std::int64_t per_image = plan_.rows * plan_.columns, within = tile % per_image;
    return {tile / per_image, within / plan_.columns * kTile, within % plan_.columns * kTile};
  }

  void transform_filter() {
    const std::int64_t lanes = plan_.transforms->lanes;
    parallel_for(plan_.filter.channels / lanes, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) {
        plan_.transforms->filter(plan_.filter, static_cast<const float*>(filter), block * lanes,
                                 static_cast<float*>(filter_planes), plan_.filter_plane);
      }
    });
  }

  template <class T, class Transform>
  void read(std::int64_t first, std::int64_t count, Transform transform) {
    const auto* images = static_cast<const T*>(source);
    auto* planes = static_cast<float*>(source_planes);
    parallel_for(count, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Place p = place(first + t);
        transform(plan_.source, images + p.image * plan_.source_image, p.y - plan_.pad_top,
                  p.x - plan_.pad_left, planes + t * plan_.source.channels, plan_.source_plane);
      }
    });
  }

  template <class T, class Transform>
  void write(std::int64_t first, std::int64_t count, Transform transform) {
    const auto* planes = static_cast<const float*>(target_planes);
    auto* images = static_cast<T*>(target);
    const auto* extra = static_cast<const T*>(plan_.residual_is_target ? target : residual);
    const Epilogue epilogue{static_cast<const float*>(bias), plan_.clip, plan_.low, plan_.high};
    parallel_for(count, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const Place p = place(first + t);
        const std::int64_t at = p.image * plan_.target_image;
        transform(plan_.target, epilogue, planes + t * plan_.target.channels, plan_.target_plane, p.y, p.x,
                  extra ? extra + at : nullptr, images + at);
      }
    });
  }

  const Plan& plan_;
  const std::string& task_;
};

struct Places {
  Location source, target, weights, source_planes, target_planes, scratchpad;
  std::optional<Location> filter, residual, bias;
};

class WinogradStep : public Step {
 public:
  WinogradStep(Plan plan, Places places, Products full, Products rest, std::string task)
      : plan_(plan),
        places_(places),
        full_(std::move(full)),
        rest_(std::move(rest)),
        task_(std::move(task)) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundWinograd>(plan_, task_);
    binder.address(&bound->source, places_.source);
    binder.address(&bound->target, places_.target);
    binder.address(&bound->source_planes, places_.source_planes);
    binder.address(&bound->target_planes, places_.target_planes);
    if (places_.filter) {
      binder.address(&bound->filter, *places_.filter);
      binder.address(&bound->filter_planes, places_.weights);
    }
    if (places_.residual) binder.address(&bound->residual, *places_.residual);
    if (places_.bias) binder.address(&bound->bias, *places_.bias);
    bound->full = full_.primitive.get();
    bound->full_args = arguments(full_, binder);
    if (rest_.primitive.get(true)) {
      bound->rest = rest_.primitive.get();
      bound->rest_args = arguments(rest_, binder);
    }
    return bound;
  }

 private:
  std::vector<dnnl_exec_arg_t> arguments(const Products& products, Binder& binder) const {
    std::vector<dnnl_exec_arg_t> args = {
        {DNNL_ARG_SRC, binder.memory(products.source, places_.source_planes)},
        {DNNL_ARG_WEIGHTS, binder.memory(products.weights, places_.weights)},
        {DNNL_ARG_DST, binder.memory(products.target, places_.target_planes)}};
    if (products.scratchpad.get_size()) {
      args.push_back({DNNL_ARG_SCRATCHPAD, binder.memory(products.scratchpad, places_.scratchpad)});
    }
    return args;
  }

  Plan plan_;
  Places places_;
  Products full_, rest_;
  std::string task_;
};

// Transforms the weights, then brings them into the layout that the products want.
Location prepare_weights(Lowering& low, const View& w, const Filter& filter, const Desc& want) {
  const DType type = w.dtype;
  return low.prepared(w, want.get_size(), [=](const char* from, char* to) {
    std::vector<float> planes(static_cast<std::size_t>(kPlanes * filter.channels * filter.outputs));
    if (type == DType::BFloat16) {
      winograd::transform_weights(filter, reinterpret_cast<const std::uint16_t*>(from), planes.data());
    } else {
      winograd::transform_weights(filter, reinterpret_cast<const float*>(from), planes.data());
    }
    const Desc plain({kPlanes, filter.channels, filter.outputs}, dnnl::memory::data_type::f32,
                     dnnl::memory::format_tag::abc);
    dnnl::memory source(plain, onednn_engine(), planes.data());
    dnnl::memory target(want, onednn_engine(), to);
    dnnl::stream stream(onednn_engine());
    dnnl::reorder(source, target).execute(stream, source, target);
    stream.wait();
  });
}

Products make_products(const Plan& plan, std::int64_t tiles, const Desc& weights) {
  const auto desc = products_desc(plan, tiles, weights);
  return {dnnl::matmul(desc), desc.src_desc(), desc.weights_desc(), desc.dst_desc(), desc.scratchpad_desc()};
}

}  // namespace

bool lower_winograd(Lowering& low, bool transposed) {
  const std::optional<Plan> plan = make_plan(low, transposed);
  if (!plan) return false;
  const View& y = low.output(0);
  const double pixels = static_cast<double>((transposed ? low.input(0) : y).elements());
  const std::int64_t others = transposed ? plan->target.channels : plan->source.channels;
  const double flops = 2.0 * pixels * 9.0 * static_cast<double>(others);
  low.describe("winograd_4x4:" + std::to_string(plan->transforms->lanes * 32), "acdb", flops);
  if (!low.building()) return true;

  Products full = make_products(*plan, plan->chunk, filter_desc(*plan));
  const std::int64_t left = plan->tiles() % plan->chunk;
  Products rest = left ? make_products(*plan, left, full.weights) : Products{};
  Places places;
  places.source = low.at(low.input(0));
  places.target = low.at(y);
  if (plan->constant_filter) {
    places.weights = prepare_weights(low, low.input(1), plan->filter, full.weights);
  } else {
    places.filter = low.at(low.input(1));
    places.weights = low.scratch(full.weights.get_size());
  }
  places.source_planes = low.scratch(static_cast<std::size_t>(kPlanes * plan->source_plane) * sizeof(float));
  places.target_planes = low.scratch(static_cast<std::size_t>(kPlanes * plan->target_plane) * sizeof(float));
  places.scratchpad =
      low.scratch(std::max(full.scratchpad.get_size(), left ? rest.scratchpad.get_size() : std::size_t{0}));
  if (plan->residual_input >= 0) {
    places.residual = low.at(low.input(static_cast<std::size_t>(plan->residual_input)));
  }
  if (plan->bias_input >= 0) {
    places.bias = low.at(low.input(static_cast<std::size_t>(plan->bias_input)));
  }
  low.emit(std::make_unique<WinogradStep>(*plan, places, std::move(full), std::move(rest), low.task().name));
  return true;
}

}  // namespace npu
