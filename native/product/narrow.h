// Float32 products with few rows, or of few columns by few rows: as fast as the large operand comes from
// memory.
//
// They are the products of small batches in training, whose weights change and are not worth packing.
#pragma once

#include <cstdint>

namespace npu::product {

inline constexpr std::int64_t kNarrow = 8;  // rows, or terms of a sum

// y = a b, by strides in elements; columns of y lie side by side.
struct NarrowProblem {
  std::int64_t rows, columns, depth;
  std::int64_t a_row, a_column;
  std::int64_t b_row, b_column;
  std::int64_t y_row;
  float low, high;  // results are brought between them
  bool streams;     // outer products go past the caches where they can: nobody reads them soon
};

struct NarrowOperands {
  const float* a;
  const float* b;
  const float* bias;  // one number for each column, or nullptr
  float* y;
};

// Computes columns [first, last) of y, or its rows for outer products.
using NarrowFn = void (*)(const NarrowProblem& problem, const NarrowOperands& operands, std::int64_t first,
                          std::int64_t last);

struct NarrowKernels {
  NarrowFn dots;   // few rows; columns of b lie in memory one by one, rows of a too
  NarrowFn rows;   // few rows; rows of b lie in memory one by one
  NarrowFn outer;  // a sum of few terms; rows of b lie in memory one by one
};

// The kernels on this machine, or nullptr.
const NarrowKernels* narrow();
const NarrowKernels* narrow_avx512();

}  // namespace npu::product
