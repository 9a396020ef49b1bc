// Depthwise convolution.
#include "convolution/depthwise.h"

#include <utility>

#include "convolution/kernels/elements.h"

namespace npu::convolution {
namespace {

constexpr int kStrip = 7;  // outputs per iteration; most networks' image widths are multiples of it

// A padded row of the source, widened; `y` may be outside of the image.
template <class T>
void read_row(const Depthwise& p, const typename T::Value* image, std::int64_t y, Lanes lanes, float* row) {
  const std::int64_t width = p.padded_width();
  const std::int64_t count = y < 0 || y >= p.height ? 0 : smaller(p.width, width - p.pad_left);
  widen_row<T>(count ? image + y * p.source_row : image, p.source_pixel, p.pad_left, count, width, lanes,
               row);
}

template <class T, Activation kActivation, int kKernel, int kStride, int kCount>
inline void strip(const Depthwise& p, const float* const rows[kKernel], const float* weights, Vector bias,
                  const typename T::Value* residual, typename T::Value* target, Lanes lanes) {
  Vector sum[kCount];
  for (int i = 0; i < kCount; ++i) sum[i] = bias;
#pragma GCC unroll 7
  for (int ky = 0; ky < kKernel; ++ky) {
#pragma GCC unroll 7
    for (int kx = 0; kx < kKernel; ++kx) {
      const Vector w = load(weights + (ky * kKernel + kx) * kLanes);
#pragma GCC unroll 7
      for (int i = 0; i < kCount; ++i) {
        sum[i] = fma(w, load(rows[ky] + (i * kStride + kx) * kLanes), sum[i]);
      }
    }
  }
#pragma GCC unroll 7
  for (int i = 0; i < kCount; ++i) {
    const std::int64_t at = i * p.target_pixel;
    const Vector value = residual ? sum[i] + T::load(residual + at, lanes) : sum[i];
    T::store(target + at, lanes, activate<kActivation, kCoarse<T>>(p.epilogue, value));
  }
}

template <class T, Activation kActivation, int kKernel, int kStride, int... kCounts>
void rest(int count, const Depthwise& p, const float* const rows[kKernel], const float* weights, Vector bias,
          const typename T::Value* residual, typename T::Value* target, Lanes lanes,
          std::integer_sequence<int, kCounts...>) {
  ((count == kCounts + 1 ? strip<T, kActivation, kKernel, kStride, kCounts + 1>(p, rows, weights, bias,
                                                                                residual, target, lanes)
                         : void()),
   ...);
}

template <class T, Activation kActivation, int kKernel, int kStride>
void activated_rows(const Depthwise& p, const DepthwiseData& data, std::int64_t image, std::int64_t block,
                    std::int64_t first, std::int64_t last, float* buffer) {
  using Value = typename T::Value;
  const std::int64_t channel = block * kLanes, row_size = p.padded_width() * kLanes;
  const Lanes lanes = first_lanes(p.channels - channel);
  const auto* source = static_cast<const Value*>(data.source) + image * p.source_image + channel;
  const std::int64_t at = image * p.target_image + channel;
  const float* weights = data.weights + block * kKernel * kKernel * kLanes;
  const Vector bias = data.bias ? load(data.bias + channel, lanes) : zero();
  std::int64_t read =
      first * kStride;  // rows before it, counted from the first padded one, are in the buffer
  for (std::int64_t y = first; y < last; ++y) {
    const std::int64_t top = y * kStride;
    for (read = read < top ? top : read; read < top + kKernel; ++read) {
      read_row<T>(p, source, read - p.pad_top, lanes, buffer + read % kKernel * row_size);
    }
    const float* window[kKernel];
    for (std::int64_t x = 0; x < p.out_width; x += kStrip) {
      for (int k = 0; k < kKernel; ++k) {
        window[k] = buffer + (top + k) % kKernel * row_size + x * kStride * kLanes;
      }
      const std::int64_t place = at + y * p.target_row + x * p.target_pixel;
      const Value* residual = p.has_residual ? static_cast<const Value*>(data.residual) + place : nullptr;
      Value* target = static_cast<Value*>(data.target) + place;
      if (p.out_width - x >= kStrip) {
        strip<T, kActivation, kKernel, kStride, kStrip>(p, window, weights, bias, residual, target, lanes);
      } else {
        rest<T, kActivation, kKernel, kStride>(static_cast<int>(p.out_width - x), p, window, weights, bias,
                                               residual, target, lanes,
                                               std::make_integer_sequence<int, kStrip - 1>());
      }
    }
  }
}

template <class T, int kKernel, int kStride>
void rows(const Depthwise& p, const DepthwiseData& data, std::int64_t image, std::int64_t block,
          std::int64_t first, std::int64_t last, float* buffer) {
  with_activation(p.epilogue, [&]<Activation kActivation>() {
    activated_rows<T, kActivation, kKernel, kStride>(p, data, image, block, first, last, buffer);
  });
}

struct Entry {
  std::int64_t kernel, stride;
  DepthwiseFn function;
};

template <class T>
constexpr Entry kEntries[] = {
    {3, 1, rows<T, 3, 1>}, {3, 2, rows<T, 3, 2>}, {5, 1, rows<T, 5, 1>},
    {5, 2, rows<T, 5, 2>}, {7, 1, rows<T, 7, 1>},
};

}  // namespace

template <Vectors>
DepthwiseFn depthwise_for(DType type, std::int64_t kernel, std::int64_t stride) {
  return for_type(type, [&]<class T>() -> DepthwiseFn {
    for (const Entry& entry : kEntries<T>) {
      if (entry.kernel == kernel && entry.stride == stride) return entry.function;
    }
    return nullptr;
  });
}
template DepthwiseFn depthwise_for<kVectors>(DType, std::int64_t, std::int64_t);

}  // namespace npu::convolution
