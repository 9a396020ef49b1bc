// max_pool_indices, max_unpool, lp_pool, col2im: windows over images.
#include <algorithm>
#include <cmath>
#include <limits>

#include "aicpu/dispatch.h"
#include "core/parallel.h"

namespace npu::aicpu {
namespace {

struct Window {
  Dims image, out, kernel, strides, dilations, pads;
  std::int64_t image_size = 1, out_size = 1, kernel_size = 1;
};

Status read_window(const Attrs& attrs, const Dims& image, const Dims& out, const char* kernel,
                   Window& window) {
  const std::size_t rank = image.size();
  window.image = image;
  window.out = out;
  window.kernel = attrs.integers(kernel);
  window.strides = attrs.integers("strides", Dims(rank, 1));
  window.dilations = attrs.integers("dilations", Dims(rank, 1));
  window.pads = attrs.integers("pads_begin", Dims(rank, 0));
  for (const Dims* list : {&window.out, &window.kernel, &window.strides, &window.dilations, &window.pads}) {
    if (list->size() != rank)
      return Status::error("kernel, strides, dilations and pads need a number a dimension");
  }
  for (std::size_t d = 0; d < rank; ++d) {
    if (window.kernel[d] < 1 || window.strides[d] < 1 || window.dilations[d] < 1) {
      return Status::error("kernel, strides and dilations must be positive");
    }
    window.image_size *= image[d];
    window.out_size *= out[d];
    window.kernel_size *= window.kernel[d];
  }
  return Status::ok();
}

// Calls visit(k, place) for every element of the window at output position `o` that is inside the image.
template <class Visit>
void for_window(const Window& w, std::int64_t o, const Visit& visit) {
  const std::size_t rank = w.image.size();
  std::int64_t start[8];
  for (std::size_t d = rank; d-- > 0;) {
    start[d] = o % w.out[d] * w.strides[d] - w.pads[d];
    o /= w.out[d];
  }
  for (std::int64_t k = 0; k < w.kernel_size; ++k) {
    std::int64_t rest = k, place = 0, step = 1;
    bool inside = true;
    for (std::size_t d = rank; d-- > 0;) {
      const std::int64_t at = start[d] + rest % w.kernel[d] * w.dilations[d];
      rest /= w.kernel[d];
      inside = inside && at >= 0 && at < w.image[d];
      place += at * step;
      step *= w.image[d];
    }
    if (inside) visit(k, place);
  }
}

Dims spatial_dims(const Tensor& tensor) { return {tensor.dims.begin() + 2, tensor.dims.end()}; }

Status check_images(const Tensor& x, const Tensor& y) {
  const bool sound = x.rank() >= 3 && x.rank() <= 8 && y.rank() == x.rank() && x.dims[0] == y.dims[0] &&
                     x.dims[1] == y.dims[1] && x.dtype == y.dtype;
  return sound ? Status::ok() : Status::error("expects input and output (N, C, spatial) of one type");
}

// The place counted with the first spatial axis fastest.
std::int64_t column_major(const Dims& image, std::int64_t place) {
  std::int64_t result = 0;
  Dims position(image.size());
  for (std::size_t d = image.size(); d-- > 0;) {
    position[d] = place % image[d];
    place /= image[d];
  }
  for (std::size_t d = image.size(); d-- > 0;) result = result * image[d] + position[d];
  return result;
}

template <class T>
Status pool_with_indices(Call& call) {
  const Tensor& x = call.inputs[0];
  const Tensor& y = call.outputs[0];
  const Tensor& indices = call.outputs[1];
  NPU_RETURN_IF_ERROR(check_images(x, y));
  if (indices.dtype != DType::Int64 || indices.elements() != y.elements()) {
    return Status::error("indices must be int64, as many as values");
  }
  Window w;
  NPU_RETURN_IF_ERROR(read_window(call.attrs, spatial_dims(x), spatial_dims(y), "kernel", w));
  const bool by_column = call.attrs.integer("storage_order", 0) != 0;
  const bool per_plane = call.attrs.flag("per_plane");
  parallel_for(x.dims[0] * x.dims[1], 1, [&](std::int64_t lo, std::int64_t hi) {
    for (std::int64_t p = lo; p < hi; ++p) {
      const T* image = x.as<T>() + p * w.image_size;
      for (std::int64_t o = 0; o < w.out_size; ++o) {
        std::int64_t best = -1;
        for_window(w, o, [&](std::int64_t, std::int64_t place) {
          if (best < 0 || is_less(image[best], image[place])) best = place;
        });
        y.as<T>()[p * w.out_size + o] = best < 0 ? T{} : image[best];
        const std::int64_t counted = by_column && best >= 0 ? column_major(w.image, best) : best;
        indices.as<std::int64_t>()[p * w.out_size + o] = (per_plane ? 0 : p * w.image_size) + counted;
      }
    }
  });
  return Status::ok();
}

// Outputs: values, indices into the flat input (`per_plane`: into each image plane).
Status max_pool_indices(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(1, 2));
  return with_type(call.inputs[0].dtype, [&](auto zero) { return pool_with_indices<decltype(zero)>(call); });
}

// Inputs: x, indices. Indices refer to a tensor of `unpooled_shape` when given, else to the output.
template <class Word>
Status unpool(Call& call) {
  const Tensor& x = call.inputs[0];
  const Tensor& indices = call.inputs[1];
  const Tensor& y = call.outputs[0];
  const Dims shape = call.attrs.integers("unpooled_shape", y.dims);
  if (shape.size() != y.rank()) return Status::error("the unpooled shape has another rank than the output");
  const bool per_plane = call.attrs.flag("per_plane");
  const Dims strides = contiguous_strides(y.dims);
  std::int64_t total = 1;
  std::int64_t plane = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) (total *= shape[d], plane *= d < 2 ? 1 : shape[d]);
  const std::int64_t in_plane = x.elements() / std::max<std::int64_t>(x.dims[0] * x.dims[1], 1);
  std::fill_n(y.as<Word>(), y.elements(), Word{0});
  for (std::int64_t i = 0; i < x.elements(); ++i) {
    std::int64_t index = indices.as<std::int64_t>()[i];
    if (per_plane) index += i / in_plane * plane;
    if (index < 0 || index >= total)
      return Status::error("index " + std::to_string(index) + " is out of range", "index");
    std::int64_t place = 0;
    bool inside = true;
    for (std::size_t d = shape.size(); d-- > 0;) {
      const std::int64_t at = index % shape[d];
      index /= shape[d];
      inside = inside && at < y.dims[d];
      place += at * strides[d];
    }
    if (inside) y.as<Word>()[place] = x.as<Word>()[i];
  }
  return Status::ok();
}

Status max_unpool(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(2, 1));
  NPU_RETURN_IF_ERROR(check_images(call.inputs[0], call.outputs[0]));
  if (call.inputs[1].dtype != DType::Int64 || call.inputs[1].elements() != call.inputs[0].elements()) {
    return Status::error("indices must be int64, as many as values");
  }
  return with_word(call.inputs[0].dtype, [&](auto word) { return unpool<decltype(word)>(call); });
}

template <class T>
Status pool_norm(Call& call) {
  const Tensor& x = call.inputs[0];
  const Tensor& y = call.outputs[0];
  NPU_RETURN_IF_ERROR(check_images(x, y));
  Window w;
  NPU_RETURN_IF_ERROR(read_window(call.attrs, spatial_dims(x), spatial_dims(y), "kernel", w));
  const double p = call.attrs.real("p", 2);
  if (p <= 0) return Status::error("p must be positive");
  parallel_for(x.dims[0] * x.dims[1], 1, [&](std::int64_t lo, std::int64_t hi) {
    for (std::int64_t plane = lo; plane < hi; ++plane) {
      const T* image = x.as<T>() + plane * w.image_size;
      for (std::int64_t o = 0; o < w.out_size; ++o) {
        double sum = 0;
        for_window(w, o, [&](std::int64_t, std::int64_t place) {
          sum += std::pow(std::fabs(static_cast<double>(image[place])), p);
        });
        y.as<T>()[plane * w.out_size + o] = static_cast<T>(std::pow(sum, 1 / p));
      }
    }
  });
  return Status::ok();
}

Status lp_pool(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(1, 1));
  return with_real(call, [](auto zero, Call& real) { return pool_norm<decltype(zero)>(real); });
}

template <class T>
Status add_columns(Call& call) {
  const Tensor& x = call.inputs[0];
  const Tensor& y = call.outputs[0];
  if (x.rank() != 3 || y.rank() < 3 || y.rank() > 8 || x.dtype != y.dtype || x.dims[0] != y.dims[0]) {
    return Status::error("expects columns (N, C * block, positions) and an output (N, C, spatial)");
  }
  Window w;
  const Dims positions = call.attrs.integers("positions");
  NPU_RETURN_IF_ERROR(read_window(call.attrs, spatial_dims(y), positions, "block", w));
  if (x.dims[1] != y.dims[1] * w.kernel_size || x.dims[2] != w.out_size) {
    return Status::error("the columns do not match the image");
  }
  parallel_for(y.dims[0] * y.dims[1], 1, [&](std::int64_t lo, std::int64_t hi) {
    for (std::int64_t plane = lo; plane < hi; ++plane) {
      T* image = y.as<T>() + plane * w.image_size;
      const T* columns = x.as<T>() + plane * w.kernel_size * w.out_size;
      std::fill_n(image, w.image_size, T{});
      for (std::int64_t o = 0; o < w.out_size; ++o) {
        for_window(w, o,
                   [&](std::int64_t k, std::int64_t place) { image[place] += columns[k * w.out_size + o]; });
      }
    }
  });
  return Status::ok();
}

// Attributes: block, positions (blocks along each axis), strides, dilations, pads_begin.
Status col2im(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(1, 1));
  return with_real(call, [](auto zero, Call& real) { return add_columns<decltype(zero)>(real); });
}

NPU_AICPU_KERNEL("max_pool_indices", max_pool_indices);
NPU_AICPU_KERNEL("max_unpool", max_unpool);
NPU_AICPU_KERNEL("lp_pool", lp_pool);
NPU_AICPU_KERNEL("col2im", col2im);

}  // namespace
}  // namespace npu::aicpu
