// Entry of the small-batch implementation of "rnn" tasks.
#pragma once

#include "runtime/lowering.h"

namespace npu {

// Lowers an LSTM of a small batch; false leaves the task to oneDNN.
bool lower_small_lstm(Lowering& low);

}  // namespace npu
