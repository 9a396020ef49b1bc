// Large float32 matrix products by Strassen's algorithm, one level deep: seven products of half-sized blocks
// instead of eight. Sums of blocks are formed while operands are packed, and each tile of a product is added
// from registers to all tiles of the result that it is a part of, which stay in the first-level cache until
// they are complete. Rows of a and columns of b are scaled to a like size by powers of two as they are
// packed, and from the first number on that is not finite the textbook's products are made: no row or column
// is less exact for what others hold. What is packed next comes from memory while products are made.
#pragma once

#include <cstdint>
#include <limits>

#include "core/loops.h"

namespace npu::product {

inline constexpr std::int64_t kTileRows = 8;
inline constexpr std::int64_t kRowUnit = 2;  // the last rows are a tile of a multiple of it
inline constexpr std::int64_t kTileColumns = 48;
inline constexpr std::int64_t kProducts = 7;

enum class Activation : std::uint8_t { None, Clip, GeluErf, GeluTanh };

// What is done with a sum before it is final: bias, residual, factor, activation, in this order.
struct Epilogue {
  Activation activation = Activation::None;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
  bool has_bias = false, has_residual = false, has_factor = false;

  bool is_empty() const {
    return activation == Activation::None && !has_bias && !has_residual && !has_factor;
  }
};

// c = a b, by strides in elements. Of the two strides of an operand one is 1; columns of c are contiguous.
struct Problem {
  std::int64_t rows, columns, depth;
  std::int64_t a_row, a_column;
  std::int64_t b_row, b_column;
  std::int64_t c_row;
  bool accumulates = false;  // c += a b
  Epilogue epilogue;
  Loops loops;
};

struct Operands {
  const float* a = nullptr;
  const float* b = nullptr;
  const float* bias = nullptr;      // one number for each column
  const float* residual = nullptr;  // laid out like c
  const float* factor = nullptr;    // likewise
  float* c = nullptr;
};

// How a problem is cut: halves, and blocks of them that the caches hold.
struct Blocks {
  explicit Blocks(const Problem& problem);

  std::int64_t half_rows, half_columns, half_depth;
  std::int64_t rows, depth;   // of a block whose sums of a are packed at a time, of each half
  std::int64_t a_sum, b_sum;  // floats between the packed sums of two products

  std::int64_t a_floats() const { return rows / kTileRows * kProducts * a_sum; }
  std::int64_t b_floats() const { return kProducts * b_sum; }
  std::int64_t scratch_floats() const { return a_floats() + b_floats() + 2 * rows; }
};

// Computes a whole problem on the calling thread. The scratch memory is aligned to cache lines.
using MultiplyFn = void (*)(const Problem&, const Operands&, float* scratch);

void multiply_avx512(const Problem& problem, const Operands& operands, float* scratch);

// The implementation this machine can run, or nullptr.
MultiplyFn multiply();

// A product shared by threads that write nothing in common: a grid of parts, each a problem of its own.
class Grid {
 public:
  Grid(const Problem& problem, std::int64_t down, std::int64_t across)
      : whole_(problem), down_(down), across_(across) {}

  std::int64_t parts() const { return down_ * across_; }
  std::int64_t scratch_floats() const;  // that each part needs at most
  Problem problem(std::int64_t part) const;
  Operands operands(std::int64_t part, const Operands& whole) const;

 private:
  struct Range {
    std::int64_t first, count;
  };
  Range rows(std::int64_t part) const;
  Range columns(std::int64_t part) const;

  Problem whole_;
  std::int64_t down_, across_;
};

}  // namespace npu::product
