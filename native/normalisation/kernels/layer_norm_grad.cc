// Gradient of one row of a layer normalisation.
#include "normalisation/layer_norm_grad.h"

#include "core/elements.h"

namespace npu::normalisation {
namespace {

#ifdef __AVX512F__
// Integer rounding: not all AVX-512 processors have bfloat16 instructions.
struct BFloat16Bits {
  using Value = std::uint16_t;
  static Vector load(const std::uint16_t* from, Lanes lanes) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static void store(std::uint16_t* to, Lanes lanes, Vector value) {
    _mm256_mask_storeu_epi16(to, lanes, _mm512_cvtepi32_epi16(upper(value)));
  }

 private:
  static __m512i upper(Vector value) {
    const __m512i bits = _mm512_castps_si512(value), high = _mm512_srli_epi32(bits, 16);
    const __m512i even = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), even);
    const Lanes nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(_mm512_srli_epi32(near, 16), nan, high, _mm512_set1_epi32(0x40));
  }
};
#endif

// Calls body(column, lanes, chain) for the vectors of a row, every other one in the second of two chains.
template <class Body>
inline void for_vectors(std::int64_t columns, Body&& body) {
  std::int64_t c = 0;
  for (; c + 2 * kLanes <= columns; c += 2 * kLanes) {
    body(c, kAllLanes, 0);
    body(c + kLanes, kAllLanes, 1);
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
  Vector normal(std::int64_t c, Lanes lanes) const { return (T::load(x_ + c, lanes) - mean_) * inverse_; }

  // Prefetches the next row and this row's destination.
  void prefetch(std::int64_t c) const {
    _mm_prefetch(reinterpret_cast<const char*>(static_cast<const typename T::Value*>(row_.dx) + c),
                 _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(dy_ + row_.columns + c), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(x_ + row_.columns + c), _MM_HINT_T0);
  }

  static void add_to(float* sums, Lanes lanes, Vector value) {
    store(sums, lanes, load(sums, lanes) + value);
  }

  void sum(std::int64_t c, Lanes lanes, Vector dy, Vector normal) const {
    add_to(row_.dscale + c, lanes, dy * normal);
    add_to(row_.dbias + c, lanes, dy);
  }

  void sums_alone() const {
    for_vectors(row_.columns, [&](std::int64_t c, Lanes lanes, int) {
      sum(c, lanes, T::load(dy_ + c, lanes), normal(c, lanes));
    });
  }

  // dx = (g - mean(g) - normal * mean(g * normal)) / deviation, with g = dy * scale
  template <bool kSums>
  void gradient() const {
    Vector plain[2] = {zero(), zero()};
    Vector weighted[2] = {zero(), zero()};
    for_vectors(row_.columns, [&](std::int64_t c, Lanes lanes, int chain) {
      const Vector dy = T::load(dy_ + c, lanes), n = normal(c, lanes);
      const Vector g = dy * load(row_.scale + c, lanes);
      plain[chain] = plain[chain] + g;
      weighted[chain] = fma(g, keep(lanes, n), weighted[chain]);
      if constexpr (kSums) sum(c, lanes, dy, n);
      prefetch(c);
    });
    const float share = 1.0f / static_cast<float>(row_.columns);
    const Vector level = splat(sum_of(plain[0] + plain[1]) * share);
    const Vector slope = splat(sum_of(weighted[0] + weighted[1]) * share);
    auto* const dx = static_cast<typename T::Value*>(row_.dx);
    for_vectors(row_.columns, [&](std::int64_t c, Lanes lanes, int) {
      const Vector scale = load(row_.scale + c, lanes);
      const Vector centred = fms(T::load(dy_ + c, lanes), scale, level);
      const Vector value = fnma(normal(c, lanes), slope, centred);
      T::store(dx + c, lanes, value * inverse_);
    });
  }

  const Row& row_;
  const typename T::Value* dy_;
  const typename T::Value* x_;
  Vector mean_, inverse_;
};

}  // namespace

template <Vectors>
RowFn layer_norm_grad_for(DType type) {
  if (type == DType::Float32) return [](const Row& row) { RowGradient<Float32>(row).run(); };
#ifdef __AVX512F__
  if (type == DType::BFloat16) return [](const Row& row) { RowGradient<BFloat16Bits>(row).run(); };
#endif
  return nullptr;
}
template RowFn layer_norm_grad_for<kVectors>(DType);

}  // namespace npu::normalisation
