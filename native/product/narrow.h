// Products with few rows, or of few columns by few rows, in float32 or bfloat16: as fast as the large operand
// comes from memory.
//
// They are the products of small batches in training, whose weights change and are not worth packing.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/processor.h"

namespace npu::product {

inline constexpr std::int64_t kNarrow = 8;  // rows, or terms of a sum

// y = a b, by strides in elements; columns of y are contiguous.
struct NarrowProblem {
  std::int64_t rows, columns, depth;
  std::int64_t a_row, a_column;
  std::int64_t b_row, b_column;
  std::int64_t y_row;
  float low, high;  // results are brought between them
  bool streams;     // outer products bypass the caches where possible: they are not read soon
};

// All of one type.
struct NarrowOperands {
  const void* a;
  const void* b;
  const void* bias;  // one number for each column, or nullptr
  void* y;
};

// Computes columns [first, last) of y, or its rows for outer products.
using NarrowFn = void (*)(const NarrowProblem& problem, const NarrowOperands& operands, std::int64_t first,
                          std::int64_t last);

struct NarrowKernels {
  NarrowFn dots;   // few rows; columns of b and rows of a are contiguous
  NarrowFn rows;   // few rows; rows of b are contiguous
  NarrowFn outer;  // a sum of few terms; rows of b are contiguous
};

// The kernels on this machine, or nullptr.
const NarrowKernels* narrow(DType type);
template <Vectors>
const NarrowKernels* narrow_for(DType type);

}  // namespace npu::product
