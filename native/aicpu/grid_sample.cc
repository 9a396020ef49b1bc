// grid_sample: samples images at given points, in two or three dimensions.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "aicpu/dispatch.h"
#include "core/parallel.h"

namespace npu::aicpu {
namespace {

constexpr double kPointCycles = 900;

enum class Mode { Nearest, Linear, Cubic };
enum class Padding { Zeros, Border, Reflection };

constexpr double kFar = 1e9;  // from here on the reflection of a coordinate is noise

// Sampling along one axis.
struct AxisSampler {
  std::int64_t size;
  Mode mode;
  Padding padding;
  bool align_corners;
  double cubic_a;

  struct Taps {
    std::array<std::int64_t, 4> index;
    std::array<double, 4> weight;
    int count;
  };

  double to_pixels(double normal) const {
    const auto n = static_cast<double>(size);
    return align_corners ? (normal + 1) / 2 * (n - 1) : ((normal + 1) * n - 1) / 2;
  }

  // Whether a coordinate says what pixels weigh, where they are weighed before they are padded.
  bool has_weights(double normal) const {
    const bool weighted = mode == Mode::Cubic || (mode == Mode::Linear && padding == Padding::Zeros);
    return !weighted || std::isfinite(normal);
  }

  double reflect(double v) const {
    const double low = align_corners ? 0 : -0.5;
    const double span = align_corners ? static_cast<double>(size - 1) : static_cast<double>(size);
    if (span <= 0) return 0;
    const double distance = std::fabs(v - low);
    const double rest = std::fmod(distance, span);
    const bool even = static_cast<std::int64_t>(std::floor(distance / span)) % 2 == 0;
    return even ? rest + low : span - rest + low;
  }

  double pad(double v) const {
    if (padding == Padding::Zeros) return v;
    if (padding == Padding::Reflection) v = std::fabs(v) <= kFar ? reflect(v) : 0;
    return v > 0 ? std::min(v, static_cast<double>(size - 1)) : 0;  // NaN as well
  }

  void add(Taps& taps, double index, double weight) const {
    if (!(index >= 0 && index < static_cast<double>(size))) return;
    taps.index[static_cast<std::size_t>(taps.count)] = static_cast<std::int64_t>(index);
    taps.weight[static_cast<std::size_t>(taps.count)] = weight;
    ++taps.count;
  }

  double cubic_weight(double distance) const {
    const double a = cubic_a, d = distance;
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  }

  Taps taps(double normal) const {
    Taps result{{}, {}, 0};
    const double v = to_pixels(normal);
    switch (mode) {
      case Mode::Nearest:
        add(result, std::nearbyint(pad(v)), 1);
        break;
      case Mode::Linear: {
        const double where = pad(v);
        const double low = std::floor(where);
        add(result, low, 1 - (where - low));
        add(result, low + 1, where - low);
        break;
      }
      case Mode::Cubic: {
        const double low = std::floor(v);
        for (int k = -1; k <= 2; ++k) add(result, pad(low + k), cubic_weight(std::fabs(v - low - k)));
        break;
      }
    }
    return result;
  }
};

struct Spec {
  std::vector<AxisSampler> axes;
  std::int64_t plane = 1;
};

Status read_spec(const Call& call, Spec& spec) {
  const std::string mode = call.attrs.text("mode", "linear");
  const std::string padding = call.attrs.text("padding_mode", "zeros");
  Mode m;
  if (mode == "nearest")
    m = Mode::Nearest;
  else if (mode == "linear" || mode == "bilinear")
    m = Mode::Linear;
  else if (mode == "cubic" || mode == "bicubic")
    m = Mode::Cubic;
  else
    return Status::error("unknown mode '" + mode + "'");
  Padding p;
  if (padding == "zeros")
    p = Padding::Zeros;
  else if (padding == "border")
    p = Padding::Border;
  else if (padding == "reflection")
    p = Padding::Reflection;
  else
    return Status::error("unknown padding mode '" + padding + "'");
  const bool align = call.attrs.flag("align_corners");
  for (std::size_t d = 2; d < call.inputs[0].rank(); ++d) {
    const std::int64_t size = call.inputs[0].dims[d];
    spec.axes.push_back({size, m, p, align, call.attrs.real("cubic_coeff_a", -0.75)});
    spec.plane *= size;
  }
  return Status::ok();
}

// The elements of a plane that a point reads, with their weights.
struct Stencil {
  std::array<std::int64_t, 64> place;
  std::array<double, 64> weight;
  int count = 0;

  template <class T>
  Stencil(const Spec& spec, const T* point) {
    place[0] = 0;
    weight[0] = 1;
    count = 1;
    for (std::size_t d = 0; d < spec.axes.size(); ++d) {
      const AxisSampler& axis = spec.axes[d];
      const auto normal = static_cast<double>(point[spec.axes.size() - 1 - d]);
      if (spec.axes.size() == 2 && !axis.has_weights(normal)) {  // such a place in a volume is outside
        place[0] = 0;
        weight[0] = std::numeric_limits<double>::quiet_NaN();
        count = 1;
        return;
      }
      const auto taps = axis.taps(normal);
      std::array<std::int64_t, 64> places;
      std::array<double, 64> weights;
      int made = 0;
      for (int i = 0; i < count; ++i) {
        for (int t = 0; t < taps.count; ++t, ++made) {
          const auto at = static_cast<std::size_t>(made);
          places[at] =
              place[static_cast<std::size_t>(i)] * axis.size + taps.index[static_cast<std::size_t>(t)];
          weights[at] = weight[static_cast<std::size_t>(i)] * taps.weight[static_cast<std::size_t>(t)];
        }
      }
      std::copy_n(places.begin(), made, place.begin());
      std::copy_n(weights.begin(), made, weight.begin());
      count = made;
    }
  }

  template <class T>
  T read(const T* plane) const {
    double sum = 0;
    for (int i = 0; i < count; ++i) {
      sum += weight[static_cast<std::size_t>(i)] *
             static_cast<double>(plane[place[static_cast<std::size_t>(i)]]);
    }
    return static_cast<T>(sum);
  }
};

template <class T>
Status sample(Call& call) {
  const Tensor& x = call.inputs[0];
  const Tensor& grid = call.inputs[1];
  const Tensor& y = call.outputs[0];
  const auto spatial = static_cast<std::int64_t>(x.rank()) - 2;
  if ((spatial != 2 && spatial != 3) || grid.rank() != x.rank() || grid.dims.back() != spatial ||
      grid.dims[0] != x.dims[0] || grid.dtype != x.dtype || y.dtype != x.dtype) {
    return Status::error("expects x (N, C, spatial) and a grid (N, points, coordinates) of the same type");
  }
  Spec spec;
  NPU_RETURN_IF_ERROR(read_spec(call, spec));
  const std::int64_t batch = x.dims[0], channels = x.dims[1];
  const std::int64_t points = batch ? grid.elements() / spatial / batch : 0;
  if (y.elements() != batch * channels * points) return Status::error("the output does not match the grid");
  if (spec.plane == 0) return Status::error("the image is empty");
  parallel_for(batch * points, grain(kPointCycles), [&](std::int64_t lo, std::int64_t hi) {
    for (std::int64_t i = lo; i < hi; ++i) {
      const Stencil stencil(spec, grid.as<T>() + i * spatial);
      const std::int64_t n = i / points, point = i % points;
      for (std::int64_t c = 0; c < channels; ++c) {
        y.as<T>()[(n * channels + c) * points + point] =
            stencil.read(x.as<T>() + (n * channels + c) * spec.plane);
      }
    }
  });
  return Status::ok();
}

// Inputs: x (N, C, [D,] H, W), grid (N, [D',] H', W', 2 or 3).
Status grid_sample(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(2, 1));
  return with_real(call, [](auto zero, Call& real) { return sample<decltype(zero)>(real); });
}

NPU_AICPU_KERNEL("grid_sample", grid_sample);

}  // namespace
}  // namespace npu::aicpu
