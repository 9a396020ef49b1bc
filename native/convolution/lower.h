// Implementations of convolutions and their gradients that are our own. Each rejects what it cannot run.
#pragma once

#include "runtime/lowering.h"

namespace npu {

// Tasks of kind "conv".
void lower_depthwise(Lowering& low);
void lower_pointwise(Lowering& low);

// Tasks of kind "deconv".
void lower_spread(Lowering& low);
void lower_depthwise_source_gradient(Lowering& low);

// Tasks of kind "conv_grad_weights".
void lower_weight_gradient(Lowering& low);
void lower_depthwise_weight_gradient(Lowering& low);

// Swish as a convolution's last post-operation, applied in place after it: checks that it can be, and the
// step.
void check_late_activation(const Lowering& low);
void lower_late_activation(Lowering& low);

}  // namespace npu
