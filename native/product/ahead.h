// What is asked for ahead of its use.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace npu::product {
namespace {  // compiled for each file's own instructions

// Lines of up to four matrices, brought to the second-level cache a few at a time while something is
// computed.
class Ahead {
 public:
  void clear() { first_ = count_ = lines_ = 0; }
  bool is_done() const { return first_ == count_; }

  // `rows` pieces of `length` numbers, `step` numbers apart.
  template <class T>
  void add(const T* data, std::int64_t rows, std::int64_t length, std::int64_t step) {
    if (rows <= 0 || length <= 0) return;
    constexpr std::int64_t kSize = sizeof(T);
    const std::int64_t begun = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data) % kLine);
    const std::int64_t lines = (begun + length * kSize + kLine - 1) / kLine;
    pieces_[count_++] = {reinterpret_cast<const char*>(data) - begun, rows, lines, step * kSize, 0};
    lines_ += rows * lines;
  }

  // Shares what there is among so many pauses.
  void spread(std::int64_t pauses) { each_ = (lines_ + pauses - 1) / pauses; }

  __attribute__((always_inline)) void fetch() {
    for (std::int64_t i = 0; i < each_ && first_ < count_; ++i) {
      Piece& piece = pieces_[first_];
      _mm_prefetch(piece.data + piece.line * kLine, _MM_HINT_T1);
      if (++piece.line < piece.lines) continue;
      piece.line = 0;
      piece.data += piece.step;
      if (--piece.rows == 0) ++first_;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;  // bytes of a cache line
  struct Piece {
    const char* data;
    std::int64_t rows, lines, step, line;
  };
  Piece pieces_[4];
  std::int64_t first_ = 0, count_ = 0, lines_ = 0, each_ = 0;
};

}  // namespace
}  // namespace npu::product
