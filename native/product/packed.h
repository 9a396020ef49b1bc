// Products with weights of 4 or 8 bits, in groups that share a factor: as fast as the packed weights come
// from memory, none of which is kept in a wider type.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace npu::product {

inline constexpr std::int64_t kPackedRows = 8;  // rows of x that pass over the weights together

// y = x wᵀ: a row of weights for each column of y, the lowest bits of a byte first. A weight is its level
// less the middle of the levels where they are unsigned, less its group's zero point, times its group's
// factor.
struct PackedProblem {
  std::int64_t rows, columns, depth;
  std::int64_t group, groups;  // weights of a row that share a factor; factors of a row
  std::int64_t row_bytes;      // of weights
  int bits;
  bool is_signed;
  DType type;  // of x, bias and y: float32 or bfloat16
};

struct PackedOperands {
  const void* x;
  const std::uint8_t* weights;
  const float* scales;
  const float* zeros;  // or nullptr
  const void* bias;    // or nullptr
  void* y;
};

struct PackedKernels {
  // Bytes of x in the order of the lanes that its weights are unpacked into, with sums for the zero points.
  std::int64_t (*prepared_bytes)(const PackedProblem& problem);
  void (*prepare)(const PackedProblem& problem, const void* x, float* prepared);
  // Columns [first, last) of y.
  void (*multiply)(const PackedProblem& problem, const PackedOperands& operands, const float* prepared,
                   std::int64_t first, std::int64_t last);
  // Rows [first, last) of the weights in the type of x.
  void (*unpack)(const PackedProblem& problem, const PackedOperands& operands, std::int64_t first,
                 std::int64_t last, void* to);
};

extern const PackedKernels kPackedAvx512;
extern const PackedKernels kPackedAvx2;
extern const PackedKernels kPackedSse4;

// The kernels of this machine.
const PackedKernels& packed();

}  // namespace npu::product
