// Gradient of a convolution's weights from channels-last images: for each tap of the kernel one product of
// the source's pixels, turned, by the gradient's.
//
// Pixels that a tap sees outside of the source are left out, and both sides are packed so that the product
// reads them in order: pairs of pixels for bfloat16, whose products take two values at once.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/processor.h"

namespace npu::convolution {

inline constexpr std::int64_t kGradientVector = 16;   // channels of a vector
inline constexpr std::int64_t kGradientColumns = 64;  // columns of a packed panel
inline constexpr std::int64_t kGradientRows = 16;     // rows of a packed panel

// Offsets of the pixels of one side of the product, in elements from the first.
struct GradientSide {
  const void* image;
  const std::int64_t* pixels;
  std::int64_t count;
};

// Channels [first, last) of pixels that are read next.
struct GradientAhead {
  GradientSide side;
  std::int64_t first, last;
};

struct GradientKernels {
  std::int64_t depth;  // pixels that one step of the product takes
  // Packs channels [first, last), whole vectors, as columns or as rows of the product.
  void (*pack)(const GradientSide& side, std::int64_t first, std::int64_t last, bool columns, float* packed);
  // Packed rows by packed columns over `steps` steps, added to `target` or put in its place.
  void (*multiply)(const float* rows, std::int64_t row_count, const float* columns, std::int64_t column_count,
                   std::int64_t steps, bool add, float* target, std::int64_t target_row,
                   const GradientAhead ahead[2]);
};

// The kernels for a type on this machine, or nullptr.
const GradientKernels* weight_gradient(DType type);
template <Vectors>
const GradientKernels* weight_gradient_for(DType type);

}  // namespace npu::convolution
