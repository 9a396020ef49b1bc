// matmul and conv for the element types that oneDNN does not multiply (float64 and integers).
#include <algorithm>

#include "aicpu/dispatch.h"
#include "core/parallel.h"

namespace npu::aicpu {
namespace {

constexpr double kCycles = 4;  // of a multiplication

// Accumulator type; integers wrap around as in their own type.
template <class T>
auto accumulator() {
  if constexpr (std::is_integral_v<T>) {
    return std::uint64_t{};
  } else if constexpr (std::is_same_v<T, double>) {
    return double{};
  } else {
    return float{};
  }
}

template <class T>
using Accumulator = decltype(accumulator<T>());

// The matrix of a batched operand for one batch index of the output; dimensions of size one broadcast.
std::int64_t batch_offset(const Tensor& operand, const Dims& out, std::int64_t index) {
  std::int64_t offset = 0;
  std::int64_t step = operand.dims[operand.rank() - 1] * operand.dims[operand.rank() - 2];
  for (std::size_t back = 3; back <= out.size(); ++back) {
    const std::int64_t dim = out[out.size() - back];
    const std::int64_t at = index % dim;
    index /= dim;
    if (back > operand.rank()) continue;
    const std::int64_t own = operand.dims[operand.rank() - back];
    offset += own == 1 ? 0 : at * step;
    step *= own;
  }
  return offset;
}

template <class T>
void multiply(const Tensor& a, const Tensor& b, const Tensor& y) {
  using A = Accumulator<T>;
  const std::int64_t m = y.dims[y.rank() - 2], n = y.dims.back(), k = a.dims.back();
  const std::int64_t rows = n ? y.elements() / n : 0;
  parallel_for(rows, grain(kCycles, n * k), [&](std::int64_t lo, std::int64_t hi) {
    std::vector<A> sums(static_cast<std::size_t>(n));
    for (std::int64_t row = lo; row < hi; ++row) {
      const T* left = a.as<T>() + batch_offset(a, y.dims, row / m) + row % m * k;
      const T* right = b.as<T>() + batch_offset(b, y.dims, row / m);
      std::fill(sums.begin(), sums.end(), A{});
      for (std::int64_t i = 0; i < k; ++i) {
        const A factor = static_cast<A>(value_of(left[i]));
        for (std::int64_t j = 0; j < n; ++j) {
          sums[static_cast<std::size_t>(j)] += factor * static_cast<A>(value_of(right[i * n + j]));
        }
      }
      for (std::int64_t j = 0; j < n; ++j) {
        y.as<T>()[row * n + j] = static_cast<T>(sums[static_cast<std::size_t>(j)]);
      }
    }
  });
}

Status check_matmul(const Tensor& a, const Tensor& b, const Tensor& y) {
  if (a.rank() < 2 || b.rank() < 2 || y.rank() != std::max(a.rank(), b.rank())) {
    return Status::error("operands must have at least two dimensions");
  }
  bool agrees = a.dtype == b.dtype && a.dtype == y.dtype && a.dims.back() == b.dims[b.rank() - 2] &&
                y.dims.back() == b.dims.back() && y.dims[y.rank() - 2] == a.dims[a.rank() - 2];
  for (const Tensor* operand : {&a, &b}) {
    for (std::size_t back = 3; back <= operand->rank(); ++back) {
      const std::int64_t own = operand->dims[operand->rank() - back];
      agrees = agrees && (own == 1 || own == y.dims[y.rank() - back]);
    }
  }
  return agrees ? Status::ok() : Status::error("the shapes or types do not multiply");
}

// Inputs: a (..., M, K), b (..., K, N); batch dimensions broadcast.
Status matmul(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(2, 1));
  const Tensor& a = call.inputs[0];
  NPU_RETURN_IF_ERROR(check_matmul(a, call.inputs[1], call.outputs[0]));
  return with_type(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>) {
      return unsupported_type(a.dtype);
    } else {
      multiply<T>(a, call.inputs[1], call.outputs[0]);
      return Status::ok();
    }
  });
}

// Convolution over up to three spatial axes; missing ones have size one.
struct Geometry {
  std::int64_t groups = 1;
  std::int64_t image[3] = {1, 1, 1}, kernel[3] = {1, 1, 1}, out[3] = {1, 1, 1};
  std::int64_t stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1}, pad[3] = {0, 0, 0};
};

Status read_geometry(const Call& call, Geometry& g) {
  const Tensor& x = call.inputs[0];
  const Tensor& w = call.inputs[1];
  const Tensor& y = call.outputs[0];
  if (x.rank() < 3 || x.rank() > 5 || w.rank() != x.rank() || y.rank() != x.rank() || x.dtype != w.dtype ||
      x.dtype != y.dtype) {
    return Status::error("expects x (N, C, spatial), w (O, I/g, kernel) and an output of one type");
  }
  g.groups = call.attrs.integer("groups", 1);
  const std::size_t spatial = x.rank() - 2;
  const Dims ones(spatial, 1), zeros(spatial, 0);
  const Dims strides = call.attrs.integers("strides", ones),
             dilations = call.attrs.integers("dilations", ones),
             pads = call.attrs.integers("pads_begin", zeros);
  if (strides.size() != spatial || dilations.size() != spatial || pads.size() != spatial) {
    return Status::error("strides, dilations and pads need a number a dimension");
  }
  for (std::size_t d = 0; d < spatial; ++d) {
    const std::size_t at = 3 - spatial + d;
    g.image[at] = x.dims[2 + d];
    g.kernel[at] = w.dims[2 + d];
    g.out[at] = y.dims[2 + d];
    g.stride[at] = strides[d];
    g.dilation[at] = dilations[d];
    g.pad[at] = pads[d];
  }
  const bool fits = g.groups > 0 && w.dims[0] % g.groups == 0 && x.dims[1] == w.dims[1] * g.groups &&
                    y.dims[1] == w.dims[0] && y.dims[0] == x.dims[0];
  return fits ? Status::ok() : Status::error("the channels do not match");
}

template <class T>
T convolve_at(const Geometry& g, const T* image, const T* kernel, std::int64_t channels, std::int64_t o) {
  using A = Accumulator<T>;
  const std::int64_t start[3] = {o / (g.out[1] * g.out[2]) * g.stride[0] - g.pad[0],
                                 o / g.out[2] % g.out[1] * g.stride[1] - g.pad[1],
                                 o % g.out[2] * g.stride[2] - g.pad[2]};
  A sum{};
  for (std::int64_t c = 0; c < channels; ++c, image += g.image[0] * g.image[1] * g.image[2]) {
    for (std::int64_t i = 0; i < g.kernel[0]; ++i) {
      const std::int64_t d = start[0] + i * g.dilation[0];
      for (std::int64_t j = 0; j < g.kernel[1]; ++j) {
        const std::int64_t h = start[1] + j * g.dilation[1];
        for (std::int64_t k = 0; k < g.kernel[2]; ++k, ++kernel) {
          const std::int64_t v = start[2] + k * g.dilation[2];
          if (d < 0 || d >= g.image[0] || h < 0 || h >= g.image[1] || v < 0 || v >= g.image[2]) continue;
          sum += static_cast<A>(value_of(image[(d * g.image[1] + h) * g.image[2] + v])) *
                 static_cast<A>(value_of(*kernel));
        }
      }
    }
  }
  return static_cast<T>(sum);
}

template <class T>
void convolve(const Call& call, const Geometry& g) {
  const Tensor& w = call.inputs[1];
  const std::int64_t channels = w.dims[1], outputs = w.dims[0], per_group = outputs / g.groups;
  const std::int64_t plane = g.image[0] * g.image[1] * g.image[2], points = g.out[0] * g.out[1] * g.out[2];
  const std::int64_t taps = channels * g.kernel[0] * g.kernel[1] * g.kernel[2];
  parallel_for(call.inputs[0].dims[0] * outputs, 1, [&](std::int64_t lo, std::int64_t hi) {
    for (std::int64_t i = lo; i < hi; ++i) {
      const std::int64_t n = i / outputs, o = i % outputs;
      const T* image =
          call.inputs[0].as<T>() + (n * call.inputs[0].dims[1] + o / per_group * channels) * plane;
      for (std::int64_t p = 0; p < points; ++p) {
        call.outputs[0].as<T>()[i * points + p] = convolve_at(g, image, w.as<T>() + o * taps, channels, p);
      }
    }
  });
}

// Attributes as of the task kind "conv": strides, dilations, pads_begin, groups.
Status conv(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(2, 1));
  Geometry geometry;
  NPU_RETURN_IF_ERROR(read_geometry(call, geometry));
  return with_type(call.inputs[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>) {
      return unsupported_type(call.inputs[0].dtype);
    } else {
      convolve<T>(call, geometry);
      return Status::ok();
    }
  });
}

NPU_AICPU_KERNEL("matmul", matmul);
NPU_AICPU_KERNEL("conv", conv);

}  // namespace
}  // namespace npu::aicpu
