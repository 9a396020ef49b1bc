// Strided copies and casts between any two element types.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "core/view.h"

namespace npu {

// Copies a strided block into another of the same dims. Casts follow C: floats truncate towards zero when
// converted to integers, and every nonzero value is true.
class StridedCopy {
 public:
  StridedCopy(const View& source, const View& target);
  void run(const char* source, char* target) const;

 private:
  struct Axis {
    std::int64_t size;
    std::int64_t source;  // strides in bytes
    std::int64_t target;
  };
  using RunFn = void (*)(const char*, std::int64_t, char*, std::int64_t, std::int64_t);

  void run_block(const char* source, char* target, std::int64_t lo, std::int64_t hi) const;
  void run_plane(const char* source, char* target, std::int64_t rows) const;

  std::vector<Axis> outer_;
  Axis rows_{1, 0, 0};
  Axis columns_{1, 0, 0};
  std::int64_t outer_count_ = 1;
  bool tiled_ = false;
  RunFn copy_row_ = nullptr;
};

// The loop that converts `n` elements with byte strides from one type to another.
void convert_row(DType from, DType to, const char* source, std::int64_t source_stride, char* target,
                 std::int64_t target_stride, std::int64_t n);

}  // namespace npu
