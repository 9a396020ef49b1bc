// Where attention keeps its packed operands and scores.
#pragma once

#include <cstdint>

#include "attention/attention.h"

namespace npu::attention {
namespace {  // compiled for each file's own instructions

constexpr std::int64_t kTileRows = 6;
constexpr std::int64_t kPanel = 64;  // columns of a packed matrix that are adjacent

constexpr std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

// Numbers are multiplied in units of four bytes: a float32, or two bfloat16.
constexpr std::int64_t units(std::int64_t numbers, std::int64_t in_unit) {
  return divide_up(numbers, in_unit);
}

// Bytes of a packed matrix of `depth` rows that are summed over, and its columns.
constexpr std::int64_t packed_bytes(std::int64_t depth, std::int64_t columns, std::int64_t in_unit) {
  return 4 * units(depth, in_unit) * divide_up(columns, kPanel) * kPanel;
}

// Bytes of a row of numbers that are multiplied from the left: vectors and one to spare, an odd number of
// cache lines, so that those of a column are in different parts of the cache.
constexpr std::int64_t row_bytes(std::int64_t numbers, std::int64_t in_unit) {
  return 64 * ((divide_up(units(numbers, in_unit), 16) + 1) | 1);
}

struct ForwardLayout {
  ForwardLayout(const Shape& s, std::int64_t in_unit)
      : score_row(divide_up(s.keys, kPanel) * kPanel),
        weight_row(row_bytes(s.keys, in_unit)),
        values(packed_bytes(s.depth, s.keys, in_unit)),
        scores(values + packed_bytes(s.keys, s.width, in_unit)),
        weights(scores + 4 * kTileRows * score_row),
        results(weights + kTileRows * weight_row),
        bytes(results + 4 * kTileRows * kPanel) {}

  std::int64_t score_row;                                // floats
  std::int64_t weight_row;                               // bytes
  std::int64_t values, scores, weights, results, bytes;  // offsets; keys come first
};

struct BackwardLayout {
  BackwardLayout(const Shape& s, std::int64_t in_unit)
      : weight_row(row_bytes(s.queries, in_unit)),
        across_row(row_bytes(s.queries, 1)),
        query_lines(0),
        gradient_lines(query_lines + packed_bytes(s.depth, s.queries, in_unit)),
        columns(gradient_lines + packed_bytes(s.width, s.queries, in_unit)),
        gradient_columns(columns + packed_bytes(s.queries > s.keys ? s.queries : s.keys, s.depth, in_unit)),
        weights(gradient_columns + packed_bytes(s.queries, s.width, in_unit)),
        slopes(weights + kTileRows * weight_row),
        across(slopes + (in_unit == 1 ? 0 : kTileRows * weight_row)),
        inner(across + units(s.keys, in_unit) * across_row),
        tops(inner + 4 * divide_up(s.queries, kPanel) * kPanel),
        logs(tops + 4 * divide_up(s.queries, kPanel) * kPanel),
        tiles(logs + 4 * divide_up(s.queries, kPanel) * kPanel),
        bytes(tiles + 2 * 4 * kTileRows * kPanel) {}

  std::int64_t weight_row, across_row;  // bytes of a row of numbers, and of units
  std::int64_t query_lines, gradient_lines, columns, gradient_columns;  // packed operands
  std::int64_t weights, slopes;                                         // of a tile of keys
  std::int64_t across;                                                  // units of the slopes of all keys
  std::int64_t inner, tops, logs, tiles, bytes;
};

}  // namespace
}  // namespace npu::attention
