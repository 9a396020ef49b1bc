// Entries of our own convolutions: tasks of kind "conv" that they take from oneDNN.
#pragma once

#include "runtime/lowering.h"

namespace npu {

// Both return false, having done nothing, when the task is not theirs.
bool lower_depthwise(Lowering& low);
bool lower_pointwise(Lowering& low);

// Whether a convolution's last post-operation is better done in place after it; the step that does it.
bool has_late_activation(const Lowering& low);
void lower_late_activation(Lowering& low);

}  // namespace npu
