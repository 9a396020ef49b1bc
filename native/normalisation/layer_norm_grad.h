// The gradient of a layer normalisation, a row at a time: a row is read once from memory and its sums over
// columns are ready before its second reading, from the first-level cache. Sums are float32.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/processor.h"

namespace npu::normalisation {

struct Row {
  const void* dy = nullptr;
  const void* x = nullptr;
  void* dx = nullptr;  // may be missing
  const float* scale = nullptr;
  float* dscale = nullptr;  // sums of all rows so far, missing together
  float* dbias = nullptr;
  std::int64_t columns = 0;
  float mean = 0, inverse = 0;  // the inverse of the deviation
};

using RowFn = void (*)(const Row&);

// The implementation for float32 or bfloat16 that this machine can run, or nullptr.
RowFn layer_norm_grad(DType type);
template <Vectors>
RowFn layer_norm_grad_for(DType type);

}  // namespace npu::normalisation
