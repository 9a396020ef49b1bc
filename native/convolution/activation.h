// Activations of what a convolution has written, in place.
#pragma once

#include <cstdint>

#include "convolution/epilogue.h"
#include "core/dtype.h"
#include "core/processor.h"

namespace npu::convolution {

// Activates `count` neighbouring values.
using ActivationFn = void (*)(const Epilogue& epilogue, void* values, std::int64_t count);

// The function for a type on this machine, or nullptr.
ActivationFn activation(DType type);
template <Vectors>
ActivationFn activation_for(DType type);

}  // namespace npu::convolution
