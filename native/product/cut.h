// How sizes are cut into blocks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace npu::product {

inline std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }
inline std::int64_t round_up(std::int64_t value, std::int64_t to) { return divide_up(value, to) * to; }

// The size of equal blocks, each a multiple of `unit`, none larger than `limit` unless it is a unit.
inline std::int64_t even_block(std::int64_t total, std::int64_t limit, std::int64_t unit) {
  if (total == 0) return unit;
  const std::int64_t most = std::max(limit / unit * unit, unit);
  return round_up(divide_up(total, divide_up(total, most)), unit);
}

}  // namespace npu::product
