// Bfloat16 products: how they are cut into blocks and shared by threads.
#include "product/pairs.h"

#include <algorithm>

#include "core/processor.h"
#include "product/cut.h"

namespace npu::product {
namespace {

// A panel of b stays in the second-level cache, and longer sums would round more.
constexpr std::int64_t kMaxDepth = 1024;
constexpr std::int64_t kMaxRows = 4096;          // for which a panel of b is packed
constexpr std::int64_t kPackedABytes = 6 << 20;  // in the last-level cache
constexpr double kHandling = 12;                 // products in the time it takes to pack a number, measured
constexpr double kStart = 60;  // depths in the time it takes to begin and to finish a tile, measured

}  // namespace

PairBlocks::PairBlocks(const Problem& p) {
  const bool packs_a = p.a_column != 1;
  const std::int64_t even_depth = round_up(p.depth, 2);
  depth = even_block(p.depth, kMaxDepth, kPairStep);
  rows = even_block(p.rows, packs_a ? kPackedABytes / 2 / even_depth : kMaxRows, kPairRowsTogether);
  b_bytes = depth * kPairColumns * 2;
  if (packs_a) a_bytes = rows * even_depth * 2;
  if (depth < p.depth) sum_bytes = rows * kPairColumns * 4;
}

MultiplyPairsFn multiply_pairs() { return has(Vectors::Avx512Bf16) ? multiply_pairs_avx512 : nullptr; }

PairGrid::PairGrid(const Problem& problem, std::int64_t threads) : whole_(problem) {
  split_.row_unit = problem.a_column == 1 ? kPairRows : kPairRowsTogether;
  split_.column_unit = kPairColumns;
  PairGrid best = *this;
  for (std::int64_t down = 1; down <= threads; ++down) {
    if (threads % down) continue;
    split_.down = down;
    split_.across = threads / down;
    if (down == 1 || efficiency() > best.efficiency()) best = *this;
  }
  *this = best;
}

std::int64_t PairGrid::bytes() const {
  return 2 * (whole_.rows * whole_.depth + whole_.columns * whole_.depth + whole_.rows * whole_.columns);
}

double PairGrid::efficiency() const {
  const Problem part = problem(0);  // none is larger
  const auto area = [](std::int64_t rows, std::int64_t columns) {
    return static_cast<double>(rows * columns);
  };
  const std::int64_t padded_rows = round_up(part.rows, 2),
                     padded_columns = round_up(part.columns, kPairColumns);
  const double tiles = area(padded_rows, padded_columns);
  const double packed = area(part.columns + (part.a_column == 1 ? 0 : part.rows), 1);
  const double depth = static_cast<double>(part.depth);
  const double taken = tiles * (depth + kStart) + kHandling * packed * depth;
  return area(whole_.rows, whole_.columns) * depth / static_cast<double>(parts()) / taken;
}

Problem PairGrid::problem(std::int64_t part) const {
  const Share share = split_.share(whole_.rows, whole_.columns, part);
  Problem own = whole_;
  own.rows = share.rows;
  own.columns = share.columns;
  return own;
}

PairOperands PairGrid::operands(std::int64_t part, const PairOperands& whole) const {
  const Share share = split_.share(whole_.rows, whole_.columns, part);
  const std::int64_t at = share.row * whole_.c_row + share.column;
  return {whole.a + share.row * whole_.a_row,
          whole.b + share.column * whole_.b_column,
          whole.bias.after(share.column),
          whole.residual.after(at),
          whole.factor.after(at),
          whole.c.after(at)};
}

std::size_t PairGrid::scratch_bytes() const {
  std::int64_t most = 0;  // a smaller part may be cut into larger blocks
  for (std::int64_t part = 0; part < parts(); ++part) {
    most = std::max(most, PairBlocks(problem(part)).scratch_bytes());
  }
  return static_cast<std::size_t>(round_up(most, 64));
}

}  // namespace npu::product
