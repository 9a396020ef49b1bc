// Entry of the Winograd implementation of "conv" tasks.
#pragma once

#include "runtime/lowering.h"

namespace npu {

// Lowers a convolution that gains by it; false leaves the task to oneDNN.
bool lower_winograd(Lowering& low);

}  // namespace npu
