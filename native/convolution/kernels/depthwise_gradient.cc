// Gradients of depthwise convolutions.
#include "convolution/depthwise_gradient.h"

#include <utility>

#include "convolution/kernels/elements.h"

namespace npu::convolution {
namespace {

constexpr int kStrip = 7;  // results per iteration

// A weight and the row that it is multiplied by, from the column of the first result on.
struct Tap {
  const float* weight;
  const float* row;
};

struct Taps {
  Tap list[kMaxGradientKernel * kMaxGradientKernel];
  int count = 0;
};

template <class T, int kCount>
void strip(const Taps& taps, std::int64_t at, typename T::Value* target, std::int64_t step, Lanes lanes) {
  Vector sum[kCount];
  for (int i = 0; i < kCount; ++i) sum[i] = zero();
  for (int t = 0; t < taps.count; ++t) {
    const Vector w = load(taps.list[t].weight);
    const float* row = taps.list[t].row + at * kLanes;
#pragma GCC unroll 7
    for (int i = 0; i < kCount; ++i) sum[i] = fma(w, load(row + i * kLanes), sum[i]);
  }
#pragma GCC unroll 7
  for (int i = 0; i < kCount; ++i) T::store(target + i * step, lanes, sum[i]);
}

template <class T, int... kCounts>
void rest(int count, const Taps& taps, std::int64_t at, typename T::Value* target, std::int64_t step,
          Lanes lanes, std::integer_sequence<int, kCounts...>) {
  ((count == kCounts + 1 ? strip<T, kCounts + 1>(taps, at, target, step, lanes) : void()), ...);
}

// Every stride-th pixel of a row, beginning at `target`.
template <class T>
void put_phase(const Taps& taps, std::int64_t count, typename T::Value* target, std::int64_t step,
               Lanes lanes) {
  std::int64_t i = 0;
  for (; i + kStrip <= count; i += kStrip) strip<T, kStrip>(taps, i, target + i * step, step, lanes);
  rest<T>(static_cast<int>(count - i), taps, i, target + i * step, step, lanes,
          std::make_integer_sequence<int, kStrip - 1>());
}

template <class T>
void source_rows(const Depthwise& p, const SourceGradientData& data, std::int64_t image, std::int64_t block,
                 std::int64_t first, std::int64_t last, float* buffer) {
  using Value = typename T::Value;
  const GradientRows rows(p);
  const std::int64_t channel = block * kLanes, s = p.stride;
  const Lanes lanes = first_lanes(p.channels - channel);
  const auto* gradient = static_cast<const Value*>(data.gradient) + image * p.target_image + channel;
  auto* source = static_cast<Value*>(data.source) + image * p.source_image + channel;
  const float* weights = data.weights + block * p.kernel * p.kernel * kLanes;
  const auto kept = [&](std::int64_t r) { return buffer + r % rows.count * rows.width * kLanes; };
  std::int64_t read = larger((first + p.pad_top - p.kernel + s) / s, 0);  // rows before it are kept
  for (std::int64_t y = first; y < last; ++y) {
    const std::int64_t end = smaller((y + p.pad_top) / s + 1, p.out_height);
    for (; read < end; ++read) {
      widen_row<T>(gradient + read * p.target_row, p.target_pixel, rows.left, p.out_width, rows.width, lanes,
                   kept(read));
    }
    for (std::int64_t phase = 0; phase < smaller(s, p.width); ++phase) {
      Taps taps;
      for (std::int64_t ky = 0; ky < p.kernel; ++ky) {
        const std::int64_t r = y + p.pad_top - ky;
        if (r < 0 || r % s || r / s >= p.out_height) continue;
        for (std::int64_t kx = 0; kx < p.kernel; ++kx) {
          const std::int64_t column = phase + p.pad_left - kx;
          if (column % s) continue;
          taps.list[taps.count++] = {weights + (ky * p.kernel + kx) * kLanes,
                                     kept(r / s) + (column / s + rows.left) * kLanes};
        }
      }
      put_phase<T>(taps, (p.width - phase + s - 1) / s, source + y * p.source_row + phase * p.source_pixel,
                   s * p.source_pixel, lanes);
    }
  }
}

template <class T, int kKernel, int kStride>
void weight_sums(const Depthwise& p, const void* source_data, const void* gradient_data, std::int64_t image,
                 std::int64_t block, std::int64_t first, std::int64_t last, float* sums, float* buffer) {
  using Value = typename T::Value;
  constexpr int kTaps = kKernel * kKernel;
  const std::int64_t channel = block * kLanes, width = p.padded_width();
  const Lanes lanes = first_lanes(p.channels - channel);
  const auto* source = static_cast<const Value*>(source_data) + image * p.source_image + channel;
  const auto* gradient = static_cast<const Value*>(gradient_data) + image * p.target_image + channel;
  const auto kept = [&](std::int64_t row) { return buffer + row % kKernel * width * kLanes; };
  Vector sum[kTaps];
#pragma GCC unroll 25
  for (int k = 0; k < kTaps; ++k) sum[k] = load(sums + k * kLanes);
  std::int64_t read = first * kStride;  // rows before it, counted from the first padded one, are kept
  for (std::int64_t y = first; y < last; ++y) {
    const std::int64_t top = y * kStride;
    for (read = read < top ? top : read; read < top + kKernel; ++read) {
      const std::int64_t row = read - p.pad_top;
      const std::int64_t count = row < 0 || row >= p.height ? 0 : smaller(p.width, width - p.pad_left);
      widen_row<T>(count ? source + row * p.source_row : source, p.source_pixel, p.pad_left, count, width,
                   lanes, kept(read));
    }
    const float* window[kKernel];
    for (int k = 0; k < kKernel; ++k) window[k] = kept(top + k);
    const Value* from = gradient + y * p.target_row;
    for (std::int64_t x = 0; x < p.out_width; ++x, from += p.target_pixel) {
      const Vector g = T::load(from, lanes);
#pragma GCC unroll 5
      for (int ky = 0; ky < kKernel; ++ky) {
        const float* row = window[ky] + x * kStride * kLanes;
#pragma GCC unroll 5
        for (int kx = 0; kx < kKernel; ++kx) {
          Vector& to = sum[ky * kKernel + kx];
          to = fma(g, load(row + kx * kLanes), to);
        }
      }
    }
  }
#pragma GCC unroll 25
  for (int k = 0; k < kTaps; ++k) store(sums + k * kLanes, sum[k]);
}

struct Entry {
  std::int64_t kernel, stride;
  WeightSumsFn function;
};

template <class T>
constexpr Entry kEntries[] = {
    {3, 1, weight_sums<T, 3, 1>},
    {3, 2, weight_sums<T, 3, 2>},
    {5, 1, weight_sums<T, 5, 1>},
    {5, 2, weight_sums<T, 5, 2>},
};

}  // namespace

template <Vectors>
SourceGradientFn depthwise_source_gradient_for(DType type) {
  return for_type(type, []<class T>() -> SourceGradientFn { return source_rows<T>; });
}
template SourceGradientFn depthwise_source_gradient_for<kVectors>(DType);

template <Vectors>
WeightSumsFn depthwise_weight_sums_for(DType type, std::int64_t kernel, std::int64_t stride) {
  return for_type(type, [&]<class T>() -> WeightSumsFn {
    for (const Entry& entry : kEntries<T>) {
      if (entry.kernel == kernel && entry.stride == stride) return entry.function;
    }
    return nullptr;
  });
}
template WeightSumsFn depthwise_weight_sums_for<kVectors>(DType, std::int64_t, std::int64_t);

}  // namespace npu::convolution
