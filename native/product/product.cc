// Strassen products: how they are cut into blocks and shared by threads.
#include "product/product.h"

#include <algorithm>

#include "core/loops.h"
#include "core/processor.h"

namespace npu::product {
namespace {

constexpr std::int64_t kPadding = 80;  // floats; keeps sums from falling into the same cache sets

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }
std::int64_t round_up(std::int64_t value, std::int64_t to) { return divide_up(value, to) * to; }

// Depth at which the seven sums of a panel of b take two thirds of the second-level cache.
std::int64_t max_depth(const Loops& loops) {
  const std::int64_t panel = kProducts * kTileColumns * static_cast<std::int64_t>(sizeof(float));
  return std::max<std::int64_t>(loops.l2_bytes * 2 / 3 / panel / 64 * 64, 64);
}

// Room for the sums of a in the last-level cache.
std::int64_t packed_a_floats(const Loops& loops) {
  return loops.last_bytes * 3 / 16 / static_cast<std::int64_t>(sizeof(float));
}

// The size of equal blocks, each a multiple of `unit`, none larger than `limit` unless it is a unit.
std::int64_t even_block(std::int64_t total, std::int64_t limit, std::int64_t unit) {
  if (total == 0) return unit;
  const std::int64_t most = std::max(limit / unit * unit, unit);
  return round_up(divide_up(total, divide_up(total, most)), unit);
}

}  // namespace

Blocks::Blocks(const Problem& p) {
  half_rows = round_up(divide_up(p.rows, 2), kRowUnit);
  half_columns = round_up(divide_up(p.columns, 2), kTileColumns);
  half_depth = divide_up(p.depth, 2);
  depth = even_block(half_depth, max_depth(p.loops), 1);
  rows = even_block(half_rows, packed_a_floats(p.loops) / kProducts / depth, 2 * kTileRows);
  a_sum = kTileRows * round_up(depth, 16) + kPadding;
  b_sum = depth * kTileColumns + kPadding;
}

MultiplyFn multiply() { return has(Vectors::Avx512) ? multiply_avx512 : nullptr; }

Grid::Range Grid::rows(std::int64_t part) const {
  const std::int64_t unit =
      whole_.a_column == 1 ? kRowUnit : kTileRows;  // rows side by side share cache lines
  const std::int64_t each = round_up(divide_up(whole_.rows, down_), 2 * unit);
  const std::int64_t first = std::min(whole_.rows, part / across_ * each);
  return {first, std::min(each, whole_.rows - first)};
}

Grid::Range Grid::columns(std::int64_t part) const {
  const std::int64_t each = round_up(divide_up(whole_.columns, across_), 2 * kTileColumns);
  const std::int64_t first = std::min(whole_.columns, part % across_ * each);
  return {first, std::min(each, whole_.columns - first)};
}

Problem Grid::problem(std::int64_t part) const {
  Problem own = whole_;
  own.rows = rows(part).count;
  own.columns = columns(part).count;
  return own;
}

Operands Grid::operands(std::int64_t part, const Operands& whole) const {
  const std::int64_t row = rows(part).first, column = columns(part).first, at = row * whole_.c_row + column;
  return {whole.a + row * whole_.a_row,
          whole.b + column * whole_.b_column,
          whole.bias ? whole.bias + column : nullptr,
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
