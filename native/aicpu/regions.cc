// roi_align, max_roi_pool, crop_and_resize: resample regions of images to one size.
#include <algorithm>
#include <cmath>
#include <limits>

#include "aicpu/dispatch.h"
#include "core/parallel.h"

namespace npu::aicpu {
namespace {

constexpr double kBinCycles = 15'000;

// Four neighbours of a point and their weights.
struct Taps {
  std::int64_t place[4];
  double weight[4];
};

// False outside the image; a border of one pixel still counts as inside, by definition of the operator.
bool bilinear_taps(double y, double x, std::int64_t height, std::int64_t width, Taps& taps) {
  if (!(y >= -1 && y <= static_cast<double>(height) && x >= -1 && x <= static_cast<double>(width)))
    return false;
  const auto split = [](double v, std::int64_t size, std::int64_t& low, std::int64_t& high, double& part) {
    v = std::max(v, 0.0);
    low = static_cast<std::int64_t>(v);
    if (low >= size - 1) {
      low = high = size - 1;
      part = 0;
    } else {
      high = low + 1;
      part = v - static_cast<double>(low);
    }
  };
  std::int64_t y0, y1, x0, x1;
  double dy, dx;
  split(y, height, y0, y1, dy);
  split(x, width, x0, x1, dx);
  taps = {{y0 * width + x0, y0 * width + x1, y1 * width + x0, y1 * width + x1},
          {(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx}};
  return true;
}

struct AlignSpec {
  std::int64_t height, width, out_height, out_width, sampling;
  double scale, offset;
  bool maximum;
};

// Samples of one bin of one region; the same for all channels.
template <class T>
std::vector<Taps> bin_taps(const AlignSpec& spec, const T* roi, std::int64_t ph, std::int64_t pw,
                           std::int64_t& samples) {
  const double x1 = static_cast<double>(roi[0]) * spec.scale - spec.offset;
  const double y1 = static_cast<double>(roi[1]) * spec.scale - spec.offset;
  double w = static_cast<double>(roi[2]) * spec.scale - spec.offset - x1;
  double h = static_cast<double>(roi[3]) * spec.scale - spec.offset - y1;
  if (spec.offset == 0) {
    w = std::max(w, 1.0);
    h = std::max(h, 1.0);
  }
  const double bin_h = h / static_cast<double>(spec.out_height);
  const double bin_w = w / static_cast<double>(spec.out_width);
  const auto grid = [&](double bin) {
    const double wanted = spec.sampling > 0 ? static_cast<double>(spec.sampling) : std::ceil(bin);
    return static_cast<std::int64_t>(std::clamp(wanted, 0.0, 4096.0));
  };
  const std::int64_t grid_h = grid(bin_h), grid_w = grid(bin_w);
  samples = std::max<std::int64_t>(grid_h * grid_w, 1);
  std::vector<Taps> list;
  for (std::int64_t iy = 0; iy < grid_h; ++iy) {
    const double y = y1 + bin_h * (static_cast<double>(ph) +
                                   (static_cast<double>(iy) + 0.5) / static_cast<double>(grid_h));
    for (std::int64_t ix = 0; ix < grid_w; ++ix) {
      const double x = x1 + bin_w * (static_cast<double>(pw) +
                                     (static_cast<double>(ix) + 0.5) / static_cast<double>(grid_w));
      Taps taps;
      if (bilinear_taps(y, x, spec.height, spec.width, taps)) {
        list.push_back(taps);
      } else {
        list.push_back({{0, 0, 0, 0}, {0, 0, 0, 0}});
      }
    }
  }
  return list;
}

template <class T>
T pool_bin(const T* plane, const std::vector<Taps>& taps, std::int64_t samples, bool maximum) {
  double sum = 0;
  double best = -std::numeric_limits<double>::infinity();
  for (const Taps& tap : taps) {
    for (int i = 0; i < 4; ++i) {
      const double value = tap.weight[i] * static_cast<double>(plane[tap.place[i]]);
      sum += value;
      best = std::max(best, value);
    }
  }
  if (maximum) return static_cast<T>(taps.empty() ? 0 : best);
  return static_cast<T>(sum / static_cast<double>(samples));
}

template <class T>
Status align_regions(Call& call) {
  const Tensor& x = call.inputs[0];
  const Tensor& rois = call.inputs[1];
  const Tensor& batches = call.inputs[2];
  const Tensor& y = call.outputs[0];
  if (x.rank() != 4 || rois.rank() != 2 || rois.dims[1] != 4 || y.rank() != 4 || rois.dtype != x.dtype) {
    return Status::error("expects x (N, C, H, W), rois (R, 4) of the same type and a 4-D output");
  }
  const std::int64_t count = rois.dims[0], channels = x.dims[1];
  if (batches.dtype != DType::Int64 || batches.elements() != count) {
    return Status::error("batch indices must be one int64 for each region");
  }
  if (y.dtype != x.dtype || y.dims[0] != count || y.dims[1] != channels) {
    return Status::error("the output does not match");
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t batch = batches.as<std::int64_t>()[r];
    if (batch < 0 || batch >= x.dims[0]) return Status::error("a batch index is out of range", "index");
  }
  const AlignSpec spec{
      x.dims[2],
      x.dims[3],
      y.dims[2],
      y.dims[3],
      call.attrs.integer("sampling_ratio", 0),
      call.attrs.real("spatial_scale", 1.0),
      call.attrs.text("coordinate_transformation_mode", "half_pixel") == "half_pixel" ? 0.5 : 0.0,
      call.attrs.text("mode", "avg") == "max"};
  if (spec.height == 0 || spec.width == 0) return Status::error("the image is empty");
  const std::int64_t plane = spec.height * spec.width;
  const std::int64_t bins = spec.out_height * spec.out_width;
  parallel_for(count * bins, grain(kBinCycles), [&](std::int64_t lo, std::int64_t hi) {
    for (std::int64_t i = lo; i < hi; ++i) {
      const std::int64_t r = i / bins, bin = i % bins;
      std::int64_t samples = 1;
      const auto taps =
          bin_taps(spec, rois.as<T>() + 4 * r, bin / spec.out_width, bin % spec.out_width, samples);
      const T* image = x.as<T>() + batches.as<std::int64_t>()[r] * channels * plane;
      for (std::int64_t c = 0; c < channels; ++c) {
        y.as<T>()[(r * channels + c) * bins + bin] = pool_bin(image + c * plane, taps, samples, spec.maximum);
      }
    }
  });
  return Status::ok();
}

// Inputs: x (N, C, H, W), rois (R, 4) as x1, y1, x2, y2, batch indices (R).
Status roi_align(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(3, 1));
  return with_real(call, [](auto zero, Call& real) { return align_regions<decltype(zero)>(real); });
}

template <class T>
Status pool_regions(Call& call) {
  const Tensor& x = call.inputs[0];
  const Tensor& rois = call.inputs[1];
  const Tensor& y = call.outputs[0];
  if (x.rank() != 4 || rois.rank() != 2 || rois.dims[1] != 5 || y.rank() != 4 || rois.dtype != x.dtype ||
      y.dtype != x.dtype || y.dims[0] != rois.dims[0] || y.dims[1] != x.dims[1]) {
    return Status::error("expects x (N, C, H, W), rois (R, 5) of the same type and output (R, C, h, w)");
  }
  const double scale = call.attrs.real("spatial_scale", 1.0);
  const std::int64_t channels = x.dims[1], height = x.dims[2], width = x.dims[3];
  for (std::int64_t r = 0; r < rois.dims[0]; ++r) {
    const T* roi = rois.as<T>() + 5 * r;
    const auto batch = static_cast<std::int64_t>(roi[0]);
    if (batch < 0 || batch >= x.dims[0]) return Status::error("a batch index is out of range", "index");
    const auto corner = [&](int i) {
      return static_cast<std::int64_t>(
          std::clamp(std::round(static_cast<double>(roi[i]) * scale), -1e9, 1e9));
    };
    const std::int64_t x1 = corner(1), y1 = corner(2), x2 = corner(3), y2 = corner(4);
    const auto range = [](std::int64_t start, std::int64_t end, std::int64_t bin, std::int64_t bins,
                          std::int64_t size) {
      const double step =
          static_cast<double>(std::max<std::int64_t>(end - start + 1, 1)) / static_cast<double>(bins);
      const auto from = static_cast<std::int64_t>(std::floor(static_cast<double>(bin) * step)) + start;
      const auto to = static_cast<std::int64_t>(std::ceil(static_cast<double>(bin + 1) * step)) + start;
      return std::pair(std::clamp<std::int64_t>(from, 0, size), std::clamp<std::int64_t>(to, 0, size));
    };
    for (std::int64_t c = 0; c < channels; ++c) {
      const T* plane = x.as<T>() + (batch * channels + c) * height * width;
      T* out = y.as<T>() + (r * channels + c) * y.dims[2] * y.dims[3];
      for (std::int64_t ph = 0; ph < y.dims[2]; ++ph) {
        const auto [h0, h1] = range(y1, y2, ph, y.dims[2], height);
        for (std::int64_t pw = 0; pw < y.dims[3]; ++pw) {
          const auto [w0, w1] = range(x1, x2, pw, y.dims[3], width);
          T best = h0 < h1 && w0 < w1 ? std::numeric_limits<T>::lowest() : T{0};
          for (std::int64_t h = h0; h < h1; ++h) {
            for (std::int64_t w = w0; w < w1; ++w) best = std::max(best, plane[h * width + w]);
          }
          *out++ = best;
        }
      }
    }
  }
  return Status::ok();
}

// Inputs: x (N, C, H, W), rois (R, 5) as batch, x1, y1, x2, y2.
Status max_roi_pool(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(2, 1));
  return with_real(call, [](auto zero, Call& real) { return pool_regions<decltype(zero)>(real); });
}

// Source coordinates along one axis, in single precision as the operator defines them.
struct CropAxis {
  float start, step, last;

  CropAxis(float from, float to, std::int64_t size, std::int64_t out) : last(static_cast<float>(size - 1)) {
    start = out > 1 ? from * last : 0.5f * (from + to) * last;
    step = out > 1 ? (to - from) * last / static_cast<float>(out - 1) : 0;
  }
  float at(std::int64_t i) const { return start + static_cast<float>(i) * step; }
  bool inside(float v) const { return v >= 0 && v <= last; }
};

template <class T>
Status crop_regions(Call& call) {
  const Tensor& image = call.inputs[0];
  const Tensor& boxes = call.inputs[1];
  const Tensor& owners = call.inputs[2];
  const Tensor& y = call.outputs[0];
  if (image.rank() != 4 || boxes.rank() != 2 || boxes.dims[1] != 4 || boxes.dtype != DType::Float32 ||
      owners.dtype != DType::Int32 || owners.elements() != boxes.dims[0] || y.rank() != 4 ||
      y.dtype != DType::Float32 || y.dims[0] != boxes.dims[0] || y.dims[3] != image.dims[3]) {
    return Status::error(
        "expects images (N, H, W, C), boxes float32 (R, 4), owners int32 (R), output float32");
  }
  const bool nearest = call.attrs.text("method", "bilinear") == "nearest";
  const auto outside = static_cast<float>(call.attrs.real("extrapolation_value", 0));
  const std::int64_t height = image.dims[1], width = image.dims[2], channels = image.dims[3];
  for (std::int64_t r = 0; r < boxes.dims[0]; ++r) {
    const std::int32_t owner = owners.as<std::int32_t>()[r];
    if (owner < 0 || owner >= image.dims[0]) return Status::error("a box's image does not exist");
  }
  parallel_for(y.dims[0] * y.dims[1], 1, [&](std::int64_t lo, std::int64_t hi) {
    for (std::int64_t row = lo; row < hi; ++row) {
      const std::int64_t r = row / y.dims[1];
      const float* box = boxes.as<float>() + 4 * r;
      const CropAxis down(box[0], box[2], height, y.dims[1]), across(box[1], box[3], width, y.dims[2]);
      const T* source = image.as<T>() + owners.as<std::int32_t>()[r] * height * width * channels;
      float* out = y.as<float>() + row * y.dims[2] * channels;
      const float v = down.at(row % y.dims[1]);
      for (std::int64_t col = 0; col < y.dims[2]; ++col, out += channels) {
        const float u = across.at(col);
        if (!down.inside(v) || !across.inside(u)) {
          std::fill_n(out, channels, outside);
          continue;
        }
        const auto pixel = [&](float py, float px) {
          return source + (static_cast<std::int64_t>(py) * width + static_cast<std::int64_t>(px)) * channels;
        };
        if (nearest) {
          const T* from = pixel(std::round(v), std::round(u));
          for (std::int64_t c = 0; c < channels; ++c) out[c] = static_cast<float>(from[c]);
          continue;
        }
        const float v0 = std::floor(v), v1 = std::ceil(v), u0 = std::floor(u), u1 = std::ceil(u);
        const float dv = v - v0, du = u - u0;
        const T *a = pixel(v0, u0), *b = pixel(v0, u1), *d = pixel(v1, u0), *e = pixel(v1, u1);
        for (std::int64_t c = 0; c < channels; ++c) {
          const float top =
              static_cast<float>(a[c]) + (static_cast<float>(b[c]) - static_cast<float>(a[c])) * du;
          const float low =
              static_cast<float>(d[c]) + (static_cast<float>(e[c]) - static_cast<float>(d[c])) * du;
          out[c] = top + (low - top) * dv;
        }
      }
    }
  });
  return Status::ok();
}

// Inputs: images (N, H, W, C), boxes (R, 4) as y1, x1, y2, x2 in 0 to 1, owners (R).
Status crop_and_resize(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(3, 1));
  return with_type(call.inputs[0].dtype,
                   [&](auto zero) -> Status { return crop_regions<decltype(zero)>(call); });
}

NPU_AICPU_KERNEL("roi_align", roi_align);
NPU_AICPU_KERNEL("max_roi_pool", max_roi_pool);
NPU_AICPU_KERNEL("crop_and_resize", crop_and_resize);

}  // namespace
}  // namespace npu::aicpu
