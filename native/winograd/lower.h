// Winograd implementations of "conv", "deconv" and "conv_grad_weights" tasks. Each rejects what it cannot
// run.
#pragma once

#include "runtime/lowering.h"

namespace npu {

// A convolution, or a transposed one.
void lower_winograd(Lowering& low, bool transposed);

// The gradient of a convolution's weights.
void lower_winograd_gradient(Lowering& low);

}  // namespace npu
