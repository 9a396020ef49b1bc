// Entries of our own convolutions: tasks of kind "conv" that they take from oneDNN.
#pragma once

#include "runtime/lowering.h"

namespace npu {

// Both return false, having done nothing, when the task is not theirs.
bool lower_depthwise(Lowering& low);
bool lower_pointwise(Lowering& low);

}  // namespace npu
