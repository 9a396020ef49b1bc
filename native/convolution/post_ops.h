// Post-operations of a task as an epilogue.
#pragma once

#include <optional>
#include <string_view>

#include "convolution/epilogue.h"
#include "runtime/lowering.h"

namespace npu::convolution {

struct Finish {
  Epilogue epilogue;
  std::optional<View> residual;  // what is added; laid out like the target
  std::size_t next = 0;          // the first input that no post-operation takes
};

// An addition at most, then an activation at most; nothing when the task has other post-operations.
std::optional<Finish> read_finish(const Lowering& low, std::size_t next);

// "kind[,alpha[,beta]]"; false when the kind is not one of ours or a number malformed.
bool read_activation(std::string_view text, Epilogue& epilogue);

// Element types, bias and constant weights as our kernels take them, without quantisation.
bool has_plain_operands(const Lowering& low);

}  // namespace npu::convolution
