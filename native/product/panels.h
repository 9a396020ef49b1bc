// Products with constant weights of 4 or 8 bits in panels of sixteen columns, by dot products of bytes.
//
// A panel has its columns in the lanes of vectors: a lane holds four weights of 8 bits that follow each
// other, or eight of 4 bits, the first four in the low halves of its bytes. x is a fixed-point number times a
// factor for each block: digits of 8 bits, three for float32 and two for bfloat16, as precise as their types
// beside the largest element of the block, or a single one where the compiler was told to round x to 8 bits.
#pragma once

#include <cstdint>

#include "product/packed.h"

namespace npu::product {

inline constexpr std::int64_t kPanelColumns = 16;

struct PanelProblem : PackedProblem {
  int digits;          // of x
  std::int64_t block;  // weights of a row that share a factor of x; a group has whole blocks

  std::int64_t panels() const { return (columns + kPanelColumns - 1) / kPanelColumns; }
  std::int64_t blocks() const { return (depth + block - 1) / block; }
  std::int64_t block_bytes() const { return block * kPanelColumns * bits / 8; }
  std::int64_t weight_bytes() const { return panels() * blocks() * block_bytes(); }
  std::int64_t factor_bytes() const;  // of scales or zero points, in panels
  std::int64_t words_of_row() const { return blocks() * (block * digits / 4 + digits + 2); }
  // x in fixed-point numbers, after a word for each row that tells whether it has become such numbers.
  std::int64_t prepared_bytes() const { return 4 * ((rows + 15) / 16 * 16 + rows * words_of_row()); }
};

struct PanelOperands {
  const void* x;
  const char* weights;
  const char* scales;
  const char* zeros;  // or nullptr
  const void* bias;   // or nullptr
  void* y;
};

// Weights of a row that share a factor of x, 0 if the groups have no whole blocks.
std::int64_t panel_block(std::int64_t depth, std::int64_t group, int digits);

// Rows of weights, as PackedProblem has them, in panels.
void pack_panels(const PanelProblem& problem, const char* from, char* to);
// Factors (columns, groups) in panels: float16 where that changes none of them.
void pack_factors(const PanelProblem& problem, const char* from, char* to);

struct PanelKernels {
  // Numbers of rows that pass over a panel together.
  std::int64_t (*chunks)(const PanelProblem& problem);
  // Chunks [first, last) of the rows of x.
  void (*prepare)(const PanelProblem& problem, const void* x, std::int64_t first, std::int64_t last,
                  std::uint32_t* prepared);
  // Panels [first, last) of y.
  void (*multiply)(const PanelProblem& problem, const PanelOperands& operands, const std::uint32_t* prepared,
                   std::int64_t first, std::int64_t last);
};

extern const PanelKernels kPanelsVnni;  // AVX-512 with dot products of bytes

// The kernels of this machine, nullptr if it has none.
const PanelKernels* panels();

}  // namespace npu::product
