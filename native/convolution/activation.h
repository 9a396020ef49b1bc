// Activations of what a convolution has written, in place.
#pragma once

#include <cstdint>

#include "convolution/epilogue.h"
#include "core/dtype.h"

namespace npu::convolution {

// Activates `count` neighbouring values.
using ActivationFn = void (*)(const Epilogue& epilogue, void* values, std::int64_t count);

// The function for a type on this machine, or nullptr.
ActivationFn activation(DType type);
ActivationFn activation_avx512(DType type);

}  // namespace npu::convolution
