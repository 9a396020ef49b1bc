// Large bfloat16 matrix products, summed in float32. The processor multiplies two numbers of a row by two of
// a column at once: b is packed as pairs of depths, a panel of columns at a time, for the second-level cache.
// Rows of a whose numbers lie side by side are pairs already and are read where they lie; others are packed
// once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "product/product.h"

namespace npu::product {

inline constexpr std::int64_t kPairRows = 8;  // of a tile in registers
inline constexpr std::int64_t kPairColumns = 48;
inline constexpr std::int64_t kPairRowsTogether = 32;  // of a, packed at once: a cache line
inline constexpr std::int64_t kPairStep = 32;          // depths of b that are packed at once

// Where numbers lie, if there are any: float32, or bfloat16.
struct Numbers {
  void* data = nullptr;
  bool is_float32 = false;

  Numbers after(std::int64_t count) const {
    const std::int64_t bytes = count * (is_float32 ? 4 : 2);
    return {data ? static_cast<char*>(data) + bytes : nullptr, is_float32};
  }
};

struct PairOperands {
  const std::uint16_t* a = nullptr;
  const std::uint16_t* b = nullptr;
  Numbers bias, residual, factor, c;  // as in Operands
};

// How a problem is cut into blocks that the caches hold.
struct PairBlocks {
  explicit PairBlocks(const Problem& problem);

  std::int64_t rows, depth;
  std::int64_t a_bytes = 0;    // packed rows of a, if they are
  std::int64_t b_bytes;        // the packed panel
  std::int64_t sum_bytes = 0;  // sums of a panel's rows where the depth has several blocks

  std::int64_t scratch_bytes() const { return a_bytes + b_bytes + sum_bytes; }
};

// Computes a whole problem on the calling thread. The scratch memory is aligned to cache lines.
using MultiplyPairsFn = void (*)(const Problem&, const PairOperands&, void* scratch);

void multiply_pairs_avx512(const Problem& problem, const PairOperands& operands, void* scratch);

// The implementation this machine can run, or nullptr.
MultiplyPairsFn multiply_pairs();

class PairGrid {
 public:
  PairGrid(const Problem& problem, std::int64_t threads);

  const Problem& whole() const { return whole_; }
  std::int64_t parts() const { return split_.parts(); }
  std::size_t scratch_bytes() const;  // that each part needs at most, in whole cache lines
  double efficiency() const;          // estimate of the time in tiles without their ends, over all time
  std::int64_t bytes() const;         // of both operands and the result
  Problem problem(std::int64_t part) const;
  PairOperands operands(std::int64_t part, const PairOperands& whole) const;

 private:
  Problem whole_;
  Split split_;
};

}  // namespace npu::product
