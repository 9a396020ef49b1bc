// Gradients of weights that several parts summed up over some of the pixels each.
#pragma once

#include <cstdint>

#include "core/parallel.h"

namespace npu::convolution {

// Weights as rows by columns for each tap of a kernel; distances in elements, columns side by side.
struct WeightRows {
  std::int64_t height, width;  // of the kernel
  std::int64_t rows, columns;
  std::int64_t row, tap_row, tap_column;
};

// Adds `count` dense sums, tap by tap and row by row, to the weights.
inline void add_partial_sums(const WeightRows& weights, float* target, const float* partial,
                             std::int64_t count) {
  const std::int64_t lines = weights.height * weights.width * weights.rows;
  parallel_for(lines, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t tap = i / weights.rows;
      float* to = target + tap / weights.width * weights.tap_row + tap % weights.width * weights.tap_column +
                  i % weights.rows * weights.row;
      for (std::int64_t p = 0; p < count; ++p) {
        const float* from = partial + (p * lines + i) * weights.columns;
        for (std::int64_t c = 0; c < weights.columns; ++c) to[c] += from[c];
      }
    }
  });
}

}  // namespace npu::convolution
