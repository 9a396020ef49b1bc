// Gradients of a convolution's weights.
#include "convolution/weight_gradient.h"

#include "core/elements.h"

namespace npu::convolution {
namespace {

constexpr std::int64_t kVector = kGradientVector;

// A word of each of 16 channels, from as many pixels as a word takes; a missing one counts as zeros.
struct Float32Pixels : Float32 {
  static Vector step(const Value* const* pixels, std::int64_t at) { return load(pixels[0] + at); }
};

#ifdef __AVX512BF16__
struct BFloat16Pixels : BFloat16 {
  static Vector step(const Value* const* pixels, std::int64_t at) {
    const __m512i high = pixels[1] ? wide(pixels[1] + at) : _mm512_setzero_si512();
    return _mm512_castsi512_ps(_mm512_or_si512(wide(pixels[0] + at), _mm512_slli_epi32(high, 16)));
  }
};
#endif

// Vector v of step s goes to packed + v * vector + s * step. An odd last pixel is paired with zeros.
template <class P>
void pack_vectors(const GradientSide& side, std::int64_t first, std::int64_t vectors, float* packed,
                  std::int64_t vector, std::int64_t step) {
  const auto* image = static_cast<const typename P::Value*>(side.image) + first;
  for (std::int64_t p = 0; p < side.count; p += P::kInWord, packed += step) {
    const typename P::Value* pixels[2] = {image + side.pixels[p], nullptr};
    if (P::kInWord == 2 && p + 1 < side.count) pixels[1] = image + side.pixels[p + 1];
    for (std::int64_t v = 0; v < vectors; ++v) {
      store(packed + v * vector, P::step(pixels, v * kVector));
    }
  }
}

// Four vectors at a time, which are contiguous in the source: as one panel of columns or as panels of rows.
template <class P>
void pack(const GradientSide& side, std::int64_t first, std::int64_t last, bool columns, float* packed) {
  const std::int64_t panel = (side.count + P::kInWord - 1) / P::kInWord * kVector;
  for (std::int64_t c = first; c < last; c += kGradientColumns) {
    const std::int64_t vectors = smaller(kGradientColumns, last - c) / kVector;
    pack_vectors<P>(side, c, vectors, packed, columns ? kVector : panel,
                    columns ? vectors * kVector : kVector);
    packed += vectors * panel;
  }
}

// Prefetches the next operands into the second-level cache, a line at a time.
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
  std::int64_t column_step, steps;
  bool add;
  float* target;
  std::int64_t target_row;
  Fetcher<typename P::Value>& fetcher;
};

template <class P, int kRows, int kWide>
void tile(const TileArguments<P>& a, std::int64_t first_row) {
  Vector sum[kRows][kWide];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) sum[r][v] = zero();
  }
  const float* rows = a.rows + first_row;
  const float* columns = a.columns;
  for (std::int64_t s = 0; s < a.steps; ++s, rows += kGradientRows, columns += a.column_step) {
    Vector column[kWide];
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) column[v] = load(columns + v * kVector);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) sum[r][v] = P::multiply(splat(rows[r]), column[v], sum[r][v]);
    }
    a.fetcher.step();
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) {
      float* to = a.target + (first_row + r) * a.target_row + v * kVector;
      store(to, a.add ? load(to) + sum[r][v] : sum[r][v]);
    }
  }
}

// Six rows fill the registers: a panel is two such tiles and one of four rows.
template <class P, int kWide>
void panels(const TileArguments<P>& a) {
  tile<P, 6, kWide>(a, 0);
  tile<P, 6, kWide>(a, 6);
  tile<P, 4, kWide>(a, 12);
}

template <class P>
void multiply(const float* rows, std::int64_t row_count, const float* columns, std::int64_t column_count,
              std::int64_t steps, bool add, float* target, std::int64_t target_row,
              const GradientAhead ahead[2]) {
  using Panels = void (*)(const TileArguments<P>&);
  static constexpr Panels kByVectors[] = {panels<P, 1>, panels<P, smaller(2, kTileVectors)>,
                                          panels<P, smaller(3, kTileVectors)>, panels<P, kTileVectors>};
  Fetcher<typename P::Value> fetcher(ahead);
  for (std::int64_t c = 0; c < column_count; c += kGradientColumns) {
    const std::int64_t vectors = smaller(kGradientColumns, column_count - c) / kVector;
    for (std::int64_t r = 0; r < row_count; r += kGradientRows) {
      for (std::int64_t v = 0; v < vectors; v += kTileVectors) {
        kByVectors[smaller(vectors - v, kTileVectors) - 1](
            {rows + r * steps, columns + c * steps + v * kVector, vectors * kVector, steps, add,
             target + r * target_row + c + v * kVector, target_row, fetcher});
      }
    }
  }
}

template <class P>
constexpr GradientKernels kKernels = {P::kInWord, pack<P>, multiply<P>};

}  // namespace

template <Vectors>
const GradientKernels* weight_gradient_for(DType type) {
  if (type == DType::Float32) return &kKernels<Float32Pixels>;
#ifdef __AVX512BF16__
  if (type == DType::BFloat16) return &kKernels<BFloat16Pixels>;
#endif
  return nullptr;
}
template const GradientKernels* weight_gradient_for<kVectors>(DType);

}  // namespace npu::convolution
