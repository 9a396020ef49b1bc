// Gradient of a convolution's weights for AVX-512, with its bfloat16 products.
#include <immintrin.h>

#include <algorithm>

#include "convolution/weight_gradient.h"

namespace npu::convolution {
namespace {

constexpr std::int64_t kVector = kGradientVector;
constexpr std::int64_t kWidest = kGradientColumns / kVector;

struct Float32Pixels {
  using Value = float;
  static constexpr std::int64_t kDepth = 1;
  static __m512 step(const Value* const* pixels, std::int64_t at) { return _mm512_loadu_ps(pixels[0] + at); }
  static __m512 multiply(float row, __m512 column, __m512 sum) {
    return _mm512_fmadd_ps(_mm512_set1_ps(row), column, sum);
  }
};

struct BFloat16Pixels {
  using Value = std::uint16_t;
  static constexpr std::int64_t kDepth = 2;
  static __m512i half(const Value* from) {
    return from ? _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))
                : _mm512_setzero_si512();
  }
  static __m512 step(const Value* const* pixels, std::int64_t at) {
    const __m512i high = half(pixels[1] ? pixels[1] + at : nullptr);
    return _mm512_castsi512_ps(_mm512_or_si512(half(pixels[0] + at), _mm512_slli_epi32(high, 16)));
  }
  static __m512 multiply(float row, __m512 column, __m512 sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(_mm512_set1_ps(row)),
                            reinterpret_cast<__m512bh>(column));
  }
};

// Vector v of step s goes to packed + v * vector + s * step. An odd last pixel is paired with zeros.
template <class P>
void pack_vectors(const GradientSide& side, std::int64_t first, std::int64_t vectors, float* packed,
                  std::int64_t vector, std::int64_t step) {
  const auto* image = static_cast<const typename P::Value*>(side.image) + first;
  for (std::int64_t p = 0; p < side.count; p += P::kDepth, packed += step) {
    const typename P::Value* pixels[2] = {image + side.pixels[p], nullptr};
    if (P::kDepth == 2 && p + 1 < side.count) pixels[1] = image + side.pixels[p + 1];
    for (std::int64_t v = 0; v < vectors; ++v) {
      _mm512_store_ps(packed + v * vector, P::step(pixels, v * kVector));
    }
  }
}

// Four vectors at a time, which are contiguous in the source: as one panel of columns or as panels of rows.
template <class P>
void pack(const GradientSide& side, std::int64_t first, std::int64_t last, bool columns, float* packed) {
  const std::int64_t panel = (side.count + P::kDepth - 1) / P::kDepth * kVector;
  for (std::int64_t c = first; c < last; c += kGradientColumns) {
    const std::int64_t vectors = std::min(kGradientColumns, last - c) / kVector;
    pack_vectors<P>(side, c, vectors, packed, columns ? kVector : panel,
                    columns ? vectors * kVector : kVector);
    packed += vectors * panel;
  }
}

// Brings what is read next into the second-level cache, a line at a time.
template <class Value>
class Fetcher {
 public:
  explicit Fetcher(const GradientAhead ahead[2]) : ahead_(ahead) {}

  void step() {
    if (left_ == 0 && !turn()) return;
    _mm_prefetch(line_, _MM_HINT_T1);
    line_ += 64;
    --left_;
  }

 private:
  bool turn() {
    while (which_ < 2 && pixel_ == ahead_[which_].side.count) {
      ++which_;
      pixel_ = 0;
    }
    if (which_ == 2) return false;
    const GradientAhead& a = ahead_[which_];
    const auto* from = static_cast<const Value*>(a.side.image) + a.side.pixels[pixel_++] + a.first;
    line_ = reinterpret_cast<const char*>(from);
    left_ = ((a.last - a.first) * static_cast<std::int64_t>(sizeof(Value)) + 63) / 64;
    return true;
  }

  const GradientAhead* ahead_;
  const char* line_ = nullptr;
  std::int64_t left_ = 0, which_ = 0, pixel_ = 0;
};

template <class P>
struct TileArguments {
  const float* rows;
  const float* columns;
  std::int64_t steps;
  bool add;
  float* target;
  std::int64_t target_row;
  Fetcher<typename P::Value>& fetcher;
};

template <class P, int kRows, int kVectors>
void tile(const TileArguments<P>& a, std::int64_t first_row) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  }
  const float* rows = a.rows + first_row;
  const float* columns = a.columns;
  for (std::int64_t s = 0; s < a.steps; ++s, rows += kGradientRows, columns += kVectors * kVector) {
    __m512 column[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) column[v] = _mm512_load_ps(columns + v * kVector);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = P::multiply(rows[r], column[v], sum[r][v]);
    }
    a.fetcher.step();
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* to = a.target + (first_row + r) * a.target_row + v * kVector;
      _mm512_storeu_ps(to, a.add ? _mm512_add_ps(_mm512_loadu_ps(to), sum[r][v]) : sum[r][v]);
    }
  }
}

// Six rows of four vectors fill the registers: a panel is two such tiles and one of four rows.
template <class P, int kVectors>
void panels(const TileArguments<P>& a) {
  tile<P, 6, kVectors>(a, 0);
  tile<P, 6, kVectors>(a, 6);
  tile<P, 4, kVectors>(a, 12);
}

template <class P>
void multiply(const float* rows, std::int64_t row_count, const float* columns, std::int64_t column_count,
              std::int64_t steps, bool add, float* target, std::int64_t target_row,
              const GradientAhead ahead[2]) {
  static constexpr void (*kByVectors[kWidest])(const TileArguments<P>&) = {panels<P, 1>, panels<P, 2>,
                                                                           panels<P, 3>, panels<P, 4>};
  Fetcher<typename P::Value> fetcher(ahead);
  for (std::int64_t c = 0; c < column_count; c += kGradientColumns) {
    const std::int64_t vectors = std::min(kGradientColumns, column_count - c) / kVector;
    for (std::int64_t r = 0; r < row_count; r += kGradientRows) {
      kByVectors[vectors - 1]({rows + r * steps, columns + c * steps, steps, add, target + r * target_row + c,
                               target_row, fetcher});
    }
  }
}

template <class P>
constexpr GradientKernels kKernels = {P::kDepth, pack<P>, multiply<P>};

}  // namespace

const GradientKernels* weight_gradient_avx512(DType type) {
  if (type == DType::Float32) return &kKernels<Float32Pixels>;
  return type == DType::BFloat16 ? &kKernels<BFloat16Pixels> : nullptr;
}

}  // namespace npu::convolution
