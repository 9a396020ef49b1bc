// Pixels put onto a coarser grid of an image: what a transposed 1x1 convolution with strides does.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/processor.h"

namespace npu::convolution {

// Float32 values as elements of a type, added to what is there or put in its place.
using SpreadFn = void (*)(const float* from, std::int64_t count, bool add, void* to);

// The function for a type on this machine, or nullptr.
SpreadFn spread(DType type);
template <Vectors>
SpreadFn spread_for(DType type);

}  // namespace npu::convolution
