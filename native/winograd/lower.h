// Entry of the Winograd implementation of "conv" and "deconv" tasks.
#pragma once

#include "runtime/lowering.h"

namespace npu {

// Lowers a convolution, or a transposed one, that gains by it; false leaves the task to oneDNN.
bool lower_winograd(Lowering& low, bool transposed);

}  // namespace npu
