// The gradient of a row of a layer normalisation, for AVX-512.
#include <immintrin.h>

#include "core/avx512.h"
#include "normalisation/layer_norm_grad.h"

namespace npu::normalisation {
namespace {

struct Float32 {
  using Value = float;
  static __m512 load(const float* from, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
  static void store(float* to, __mmask16 lanes, __m512 value) { _mm512_mask_storeu_ps(to, lanes, value); }
};

// Rounded in integers: not all processors with AVX-512 have instructions for bfloat16.
struct BFloat16Bits {
  using Value = std::uint16_t;
  static __m512 load(const std::uint16_t* from, __mmask16 lanes) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static void store(std::uint16_t* to, __mmask16 lanes, __m512 value) {
    _mm256_mask_storeu_epi16(to, lanes, _mm512_cvtepi32_epi16(upper(value)));
  }

 private:
  static __m512i upper(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value), high = _mm512_srli_epi32(bits, 16);
    const __m512i even = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), even);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(_mm512_srli_epi32(near, 16), nan, high, _mm512_set1_epi32(0x40));
  }
};

// Calls body(column, lanes, chain) for the vectors of a row, every other one in the second of two chains.
template <class Body>
inline void for_vectors(std::int64_t columns, Body&& body) {
  std::int64_t c = 0;
  for (; c + 2 * kLanes <= columns; c += 2 * kLanes) {
    body(c, static_cast<__mmask16>(0xffff), 0);
    body(c + kLanes, static_cast<__mmask16>(0xffff), 1);
  }
  for (; c < columns; c += kLanes) body(c, first_lanes(columns - c), 0);
}

template <class T>
class RowGradient {
 public:
  explicit RowGradient(const Row& row)
      : row_(row),
        dy_(static_cast<const typename T::Value*>(row.dy)),
        x_(static_cast<const typename T::Value*>(row.x)),
        mean_(splat(row.mean)),
        inverse_(splat(row.inverse)) {}

  void run() const {
    if (!row_.dx) return sums_alone();
    row_.dscale ? gradient<true>() : gradient<false>();
  }

 private:
  __m512 normal(std::int64_t c, __mmask16 lanes) const {
    return _mm512_mul_ps(_mm512_sub_ps(T::load(x_ + c, lanes), mean_), inverse_);
  }

  // The next row, and what this one is written to, come from memory while this one is worked on.
  void prefetch(std::int64_t c) const {
    _mm_prefetch(reinterpret_cast<const char*>(static_cast<const typename T::Value*>(row_.dx) + c),
                 _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(dy_ + row_.columns + c), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(x_ + row_.columns + c), _MM_HINT_T0);
  }

  static void add_to(float* sums, __mmask16 lanes, __m512 value) {
    _mm512_mask_storeu_ps(sums, lanes, _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, sums), value));
  }

  void sum(std::int64_t c, __mmask16 lanes, __m512 dy, __m512 normal) const {
    add_to(row_.dscale + c, lanes, _mm512_mul_ps(dy, normal));
    add_to(row_.dbias + c, lanes, dy);
  }

  void sums_alone() const {
    for_vectors(row_.columns, [&](std::int64_t c, __mmask16 lanes, int) {
      sum(c, lanes, T::load(dy_ + c, lanes), normal(c, lanes));
    });
  }

  // dx = (g - mean(g) - normal * mean(g * normal)) / deviation, with g = dy * scale
  template <bool kSums>
  void gradient() const {
    __m512 plain[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    __m512 weighted[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for_vectors(row_.columns, [&](std::int64_t c, __mmask16 lanes, int chain) {
      const __m512 dy = T::load(dy_ + c, lanes), n = normal(c, lanes);
      const __m512 g = _mm512_mul_ps(dy, _mm512_maskz_loadu_ps(lanes, row_.scale + c));
      plain[chain] = _mm512_add_ps(plain[chain], g);
      weighted[chain] = _mm512_mask3_fmadd_ps(g, n, weighted[chain], lanes);
      if constexpr (kSums) sum(c, lanes, dy, n);
      prefetch(c);
    });
    const float share = 1.0f / static_cast<float>(row_.columns);
    const __m512 level = splat(_mm512_reduce_add_ps(_mm512_add_ps(plain[0], plain[1])) * share);
    const __m512 slope = splat(_mm512_reduce_add_ps(_mm512_add_ps(weighted[0], weighted[1])) * share);
    auto* const dx = static_cast<typename T::Value*>(row_.dx);
    for_vectors(row_.columns, [&](std::int64_t c, __mmask16 lanes, int) {
      const __m512 scale = _mm512_maskz_loadu_ps(lanes, row_.scale + c);
      const __m512 centred = _mm512_fmsub_ps(T::load(dy_ + c, lanes), scale, level);
      const __m512 value = _mm512_fnmadd_ps(normal(c, lanes), slope, centred);
      T::store(dx + c, lanes, _mm512_mul_ps(value, inverse_));
    });
  }

  const Row& row_;
  const typename T::Value* dy_;
  const typename T::Value* x_;
  __m512 mean_, inverse_;
};

}  // namespace

void layer_norm_grad_float32_avx512(const Row& row) { RowGradient<Float32>(row).run(); }

void layer_norm_grad_bfloat16_avx512(const Row& row) { RowGradient<BFloat16Bits>(row).run(); }

}  // namespace npu::normalisation
