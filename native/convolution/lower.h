// Entries of our own convolutions and their gradients: tasks that they take from oneDNN.
#pragma once

#include "runtime/lowering.h"

namespace npu {

// Tasks of kind "conv". Both return false, having done nothing, when the task is not theirs.
bool lower_depthwise(Lowering& low);
bool lower_pointwise(Lowering& low);

// The same for tasks of kind "deconv".
bool lower_spread(Lowering& low);
bool lower_depthwise_source_gradient(Lowering& low);

// The same for tasks of kind "conv_grad_weights".
bool lower_weight_gradient(Lowering& low);
bool lower_depthwise_weight_gradient(Lowering& low);

// Whether a convolution's last post-operation is better done in place after it; the step that does it.
bool has_late_activation(const Lowering& low);
void lower_late_activation(Lowering& low);

}  // namespace npu
