// Entries of the Winograd implementations of "conv", "deconv" and "conv_grad_weights" tasks.
#pragma once

#include "runtime/lowering.h"

namespace npu {

// Lowers a convolution, or a transposed one, that gains by it; false leaves the task to oneDNN.
bool lower_winograd(Lowering& low, bool transposed);

// The same for the gradient of a convolution's weights.
bool lower_winograd_gradient(Lowering& low);

}  // namespace npu
