// The implementation of "rnn" tasks for small batches.
#pragma once

#include "runtime/lowering.h"

namespace npu {

// Lowers an LSTM of a small batch.
void lower_small_lstm(Lowering& low);

}  // namespace npu
