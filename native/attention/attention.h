// Attention of one head: softmax(scale q k' + mask) v, and its gradient. Scores of a few queries at a time
// stay in the first-level cache; sums are float32 whatever the operands are.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/processor.h"

namespace npu::attention {

// A matrix whose columns are contiguous.
struct Rows {
  char* data = nullptr;
  std::int64_t row = 0;  // elements from one row to the next
};

struct Shape {
  std::int64_t queries, keys;
  std::int64_t depth;  // columns of q and k
  std::int64_t width;  // columns of v and y
  float scale;
  bool causal;               // query i sees the keys up to i
  std::int64_t ahead_bytes;  // of the next head, up to which they are asked for early
};

enum class MaskKind : std::uint8_t { None, Kept, Added };  // false hides a key; a float32 is added

struct Mask {
  MaskKind kind = MaskKind::None;
  const char* data = nullptr;
  std::int64_t row = 0;  // bytes; keys are contiguous
  float fill = 0;        // the score of a hidden key
  bool zeros = false;    // a query whose scores are all minus infinity has no weights, else they are NaN
};

struct Forward {
  Shape shape;
  Rows q, k, v, y;
  float* sums = nullptr;  // logarithms of the sums of exponentials, one for each query; may be missing
  Mask mask;
};

struct Backward {
  Shape shape;
  Rows dy, q, k, v, y;
  const float* sums = nullptr;
  Rows dq, dk, dv;
  Mask mask;
};

// Queries from `first` to `last` of one head; the scratch memory is aligned to cache lines. What the next
// head will read, where there is one, is asked for meanwhile.
using ForwardFn = void (*)(const Forward&, const Forward* next, std::int64_t first, std::int64_t last,
                           char* scratch);
using BackwardFn = void (*)(const Backward&, const Backward* next, char* scratch);

std::int64_t forward_scratch(const Shape& shape, DType type);
std::int64_t backward_scratch(const Shape& shape, DType type);

// The implementations for float32 or bfloat16 that this machine can run, or nullptr.
ForwardFn forward(DType type);
BackwardFn backward(DType type);
template <Vectors>
ForwardFn forward_for(DType type);
template <Vectors>
BackwardFn backward_for(DType type);

}  // namespace npu::attention
