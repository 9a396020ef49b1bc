// Strassen products: how they are cut into blocks and shared by threads.
#include "product/product.h"

#include <algorithm>

#include "core/processor.h"
#include "product/cut.h"

namespace npu::product {
namespace {

constexpr std::int64_t kMaxDepth = 512;  // the seven sums of a panel of b stay in the second-level cache
constexpr std::int64_t kPackedABytes = 6 << 20;  // in the last-level cache
constexpr double kHandling = 14;       // products in the time it takes to measure and pack a number, measured
constexpr std::int64_t kPadding = 80;  // floats; keeps sums from falling into the same cache sets

}  // namespace

Blocks::Blocks(const Problem& p) {
  half_rows = round_up(divide_up(p.rows, 2), kRowUnit);
  half_columns = round_up(divide_up(p.columns, 2), kTileColumns);
  half_depth = divide_up(p.depth, 2);
  depth = even_block(half_depth, kMaxDepth, 1);
  rows = even_block(half_rows, kPackedABytes / 4 / kProducts / depth, 2 * kTileRows);
  a_sum = kTileRows * round_up(depth, 16) + kPadding;
  b_sum = depth * kTileColumns + kPadding;
}

MultiplyFn multiply() { return has(Vectors::Avx512) ? multiply_avx512 : nullptr; }

Share Split::share(std::int64_t rows, std::int64_t columns, std::int64_t part) const {
  const std::int64_t high = round_up(divide_up(rows, down), row_unit);
  const std::int64_t wide = round_up(divide_up(columns, across), column_unit);
  const std::int64_t row = std::min(rows, part / across * high);
  const std::int64_t column = std::min(columns, part % across * wide);
  return {row, column, std::min(high, rows - row), std::min(wide, columns - column)};
}

Grid::Grid(const Problem& problem, std::int64_t threads) : whole_(problem) {
  split_.row_unit =
      2 * (problem.a_column == 1 ? kRowUnit : kTileRows);  // rows side by side share cache lines
  split_.column_unit = 2 * kTileColumns;
  Grid best = *this;
  for (std::int64_t down = 1; down <= threads; ++down) {
    if (threads % down) continue;
    split_.down = down;
    split_.across = threads / down;
    if (down == 1 || gain() >= best.gain()) best = *this;  // packing a takes longer
  }
  *this = best;
}

double Grid::gain() const {
  const Problem part = problem(0);  // none is larger
  const Blocks blocks(part);
  const auto area = [](std::int64_t rows, std::int64_t columns) {
    return static_cast<double>(rows * columns);
  };
  const double padded = static_cast<double>(parts()) * area(2 * blocks.half_rows, 2 * blocks.half_columns) /
                        area(whole_.rows, whole_.columns);
  const double handled = area(part.rows + part.columns, 1) / area(part.rows, part.columns);
  return 8.0 / kProducts / padded / (1 + kHandling * handled);
}

Problem Grid::problem(std::int64_t part) const {
  const Share share = split_.share(whole_.rows, whole_.columns, part);
  Problem own = whole_;
  own.rows = share.rows;
  own.columns = share.columns;
  return own;
}

Operands Grid::operands(std::int64_t part, const Operands& whole) const {
  const Share share = split_.share(whole_.rows, whole_.columns, part);
  const std::int64_t at = share.row * whole_.c_row + share.column;
  return {whole.a + share.row * whole_.a_row,
          whole.b + share.column * whole_.b_column,
          whole.bias ? whole.bias + share.column : nullptr,
          whole.residual ? whole.residual + at : nullptr,
          whole.factor ? whole.factor + at : nullptr,
          whole.c + at};
}

std::int64_t Grid::scratch_floats() const {
  std::int64_t most = 0;  // a smaller part may be cut into larger blocks
  for (std::int64_t part = 0; part < parts(); ++part) {
    most = std::max(most, Blocks(problem(part)).scratch_floats());
  }
  return most;
}

}  // namespace npu::product
