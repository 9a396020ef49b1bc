// Selects this processor's convolution kernels and packs their weights.
#include <algorithm>

#include "convolution/activation.h"
#include "convolution/depthwise.h"
#include "convolution/depthwise_gradient.h"
#include "convolution/pointwise.h"
#include "convolution/spread.h"
#include "convolution/weight_gradient.h"
#include "core/loops.h"
#include "core/processor.h"

namespace npu::convolution {
namespace {

// Panels of outputs; within one, for each step of the depth, `kDepth` values side by side for each output.
template <class T, std::int64_t kDepth>
void pack(const T* weights, std::int64_t outputs, std::int64_t depth, std::int64_t output_stride,
          std::int64_t depth_stride, T* packed) {
  for (std::int64_t panel = 0; panel < outputs; panel += kPanel) {
    const std::int64_t width = (std::min(kPanel, outputs - panel) + 15) / 16 * 16;
    for (std::int64_t k = 0; k < depth; k += kDepth) {
      for (std::int64_t o = panel; o < panel + width; ++o) {
        for (std::int64_t d = k; d < k + kDepth; ++d) {
          *packed++ = o < outputs && d < depth ? weights[o * output_stride + d * depth_stride] : T{};
        }
      }
    }
  }
}

}  // namespace

DepthwiseFn depthwise(DType type, std::int64_t kernel, std::int64_t stride) {
  return for_machine(type, [&]<Vectors kVectors>() { return depthwise_for<kVectors>(type, kernel, stride); });
}

SourceGradientFn depthwise_source_gradient(DType type) {
  return for_machine(type, [&]<Vectors kVectors>() { return depthwise_source_gradient_for<kVectors>(type); });
}

WeightSumsFn depthwise_weight_sums(DType type, std::int64_t kernel, std::int64_t stride) {
  return for_machine(
      type, [&]<Vectors kVectors>() { return depthwise_weight_sums_for<kVectors>(type, kernel, stride); });
}

ActivationFn activation(DType type) {
  return for_machine(type, [&]<Vectors kVectors>() { return activation_for<kVectors>(type); });
}

PointwiseFn pointwise(DType type) {
  return for_machine(type, [&]<Vectors kVectors>() { return pointwise_for<kVectors>(type); });
}

SpreadFn spread(DType type) {
  return for_machine(type, [&]<Vectors kVectors>() { return spread_for<kVectors>(type); });
}

const GradientKernels* weight_gradient(DType type) {
  return for_machine(type, [&]<Vectors kVectors>() { return weight_gradient_for<kVectors>(type); });
}

std::int64_t pointwise_chunk(const Pointwise& params, DType type) {
  const std::int64_t row = (params.depth + params.outputs) * static_cast<std::int64_t>(dtype_size(type));
  const std::int64_t together = loops().l2_bytes * 3 / 16;  // rows and results, beside packed weights
  return std::max<std::int64_t>(together / row / 8 * 8, 8);
}

std::int64_t pointwise_buffer_bytes(const Pointwise& params, DType type) {
  const auto size = static_cast<std::int64_t>(dtype_size(type));
  return params.has_gate ? (params.chunk * params.depth + 16) * size : 0;
}

std::int64_t packed_bytes(DType type, std::int64_t outputs, std::int64_t depth) {
  const std::int64_t steps = type == DType::Float32 ? depth : (depth + 1) / 2;
  return (outputs + 15) / 16 * 16 * steps * 4;
}

void pack_pointwise(DType type, const void* weights, std::int64_t outputs, std::int64_t depth,
                    std::int64_t output_stride, std::int64_t depth_stride, void* packed) {
  if (type == DType::Float32) {
    pack<float, 1>(static_cast<const float*>(weights), outputs, depth, output_stride, depth_stride,
                   static_cast<float*>(packed));
  } else {
    pack<std::uint16_t, 2>(static_cast<const std::uint16_t*>(weights), outputs, depth, output_stride,
                           depth_stride, static_cast<std::uint16_t*>(packed));
  }
}

}  // namespace npu::convolution
