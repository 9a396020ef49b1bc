// Vectors of 16 numbers: one AVX-512 register, or two AVX2 registers. Kernels are written once against this
// interface and compiled for each (native/*/kernels).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "core/processor.h"

namespace npu {
namespace {  // compiled for each file's own instructions

constexpr std::int64_t kLanes = 16;

using Lanes = std::uint16_t;  // a bit for each lane

constexpr Lanes kAllLanes = 0xffff;

inline Lanes first_lanes(std::int64_t count) {
  return count >= kLanes ? kAllLanes : count <= 0 ? Lanes{0} : static_cast<Lanes>((1u << count) - 1u);
}

// Not std::min: files compiled with these instructions must not share code with others.
constexpr std::int64_t smaller(std::int64_t x, std::int64_t y) { return x < y ? x : y; }
constexpr std::int64_t larger(std::int64_t x, std::int64_t y) { return x < y ? y : x; }

#ifdef __AVX512F__

constexpr Vectors kVectors = Vectors::Avx512;
constexpr int kRegisters = 32;  // of a vector each

using Vector = __m512;

inline Vector splat(float value) { return _mm512_set1_ps(value); }
inline Vector zero() { return _mm512_setzero_ps(); }

inline Vector load(const void* from) { return _mm512_loadu_ps(from); }
inline Vector load(const void* from, Lanes lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
inline Vector load_or(Vector other, const void* from, Lanes lanes) {
  return _mm512_mask_loadu_ps(other, lanes, from);
}
inline void store(void* to, Vector x) { _mm512_storeu_ps(to, x); }
inline void store(void* to, Lanes lanes, Vector x) {
  if (lanes == kAllLanes) return _mm512_storeu_ps(to, x);  // a masked store takes several times as long
  _mm512_mask_storeu_ps(to, lanes, x);
}
inline void stream(float* to, Vector x) { _mm512_stream_ps(to, x); }  // non-temporal store; 64-byte aligned

inline Vector minimum(Vector x, Vector y) { return _mm512_min_ps(x, y); }             // y where either is NaN
inline Vector maximum(Vector x, Vector y) { return _mm512_max_ps(x, y); }             // likewise
inline Vector fma(Vector x, Vector y, Vector z) { return _mm512_fmadd_ps(x, y, z); }  // x y + z
inline Vector fms(Vector x, Vector y, Vector z) { return _mm512_fmsub_ps(x, y, z); }  // x y - z
inline Vector fnma(Vector x, Vector y, Vector z) { return _mm512_fnmadd_ps(x, y, z); }  // z - x y
inline Vector reciprocal(Vector x) { return _mm512_rcp14_ps(x); }                       // within 2e-4
inline Vector magnitude(Vector x) { return _mm512_abs_ps(x); }
inline Vector nearest(Vector x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT); }
// x times 2 to the integer n; infinity or zero for an infinite n, even if x is NaN.
inline Vector times_power(Vector x, Vector n) { return _mm512_scalef_ps(x, n); }
// x times 2 to the integer in the low bits of n, for results that are normal numbers.
inline Vector add_exponent(Vector x, Vector n) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(n), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), exponent));
}
// The exponent of x > 0.
inline Vector exponent_of(Vector x) { return _mm512_getexp_ps(x); }

inline Vector keep(Lanes lanes, Vector x) { return _mm512_maskz_mov_ps(lanes, x); }  // zero elsewhere
inline Vector choose(Lanes lanes, Vector x, Vector y) { return _mm512_mask_mov_ps(y, lanes, x); }
// x where a < b, else y.
inline Vector where_less(Vector a, Vector b, Vector x, Vector y) {
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), x);
}
inline Lanes nonzero_bytes(const char* from, Lanes lanes) {
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, from));
  return _mm512_mask_test_epi32_mask(lanes, wide, _mm512_set1_epi32(0xff));
}

inline float sum_of(Vector x) { return _mm512_reduce_add_ps(x); }
inline float largest_of(Vector x) { return _mm512_reduce_max_ps(x); }

// Transposes 16 rows of 16 numbers.
inline void transpose(Vector (&r)[16]) {
  Vector t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  const auto low = [](Vector x, Vector y) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
  };
  const auto high = [](Vector x, Vector y) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
  };
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = low(t[i], t[i + 2]);
    r[i + 1] = high(t[i], t[i + 2]);
    r[i + 2] = low(t[i + 1], t[i + 3]);
    r[i + 3] = high(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

#else

constexpr Vectors kVectors = Vectors::Avx2;
constexpr int kRegisters = 8;  // pairs

struct Vector {
  __m256 low, high;
};

// The same for both halves.
template <class Function, class... Rest>
[[gnu::always_inline]] inline Vector halves(Function&& function, const Vector& x, const Rest&... rest) {
  return {function(x.low, rest.low...), function(x.high, rest.high...)};
}

inline Vector splat(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Vector zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

inline __m256i half_mask(unsigned bits) {
  const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), each), each);
}

struct HalfMasks {
  explicit HalfMasks(Lanes lanes) : low(half_mask(lanes)), high(half_mask(lanes >> 8)) {}
  __m256i low, high;
};

inline Vector load(const void* from) {
  const auto* f = static_cast<const float*>(from);
  return {_mm256_loadu_ps(f), _mm256_loadu_ps(f + 8)};
}
inline Vector load(const void* from, Lanes lanes) {
  if (lanes == kAllLanes) return load(from);
  const auto* f = static_cast<const float*>(from);
  const HalfMasks mask(lanes);
  return {_mm256_maskload_ps(f, mask.low), _mm256_maskload_ps(f + 8, mask.high)};
}
inline void store(void* to, const Vector& x) {
  auto* t = static_cast<float*>(to);
  _mm256_storeu_ps(t, x.low);
  _mm256_storeu_ps(t + 8, x.high);
}
inline void store(void* to, Lanes lanes, const Vector& x) {
  if (lanes == kAllLanes) return store(to, x);
  auto* t = static_cast<float*>(to);
  const HalfMasks mask(lanes);
  _mm256_maskstore_ps(t, mask.low, x.low);
  _mm256_maskstore_ps(t + 8, mask.high, x.high);
}
inline void stream(float* to, const Vector& x) {
  _mm256_stream_ps(to, x.low);
  _mm256_stream_ps(to + 8, x.high);
}

inline Vector operator+(const Vector& x, const Vector& y) { return {x.low + y.low, x.high + y.high}; }
inline Vector operator-(const Vector& x, const Vector& y) { return {x.low - y.low, x.high - y.high}; }
inline Vector operator*(const Vector& x, const Vector& y) { return {x.low * y.low, x.high * y.high}; }
inline Vector operator/(const Vector& x, const Vector& y) { return {x.low / y.low, x.high / y.high}; }

inline Vector minimum(const Vector& x, const Vector& y) {
  return halves([](__m256 a, __m256 b) { return _mm256_min_ps(a, b); }, x, y);
}
inline Vector maximum(const Vector& x, const Vector& y) {
  return halves([](__m256 a, __m256 b) { return _mm256_max_ps(a, b); }, x, y);
}
inline Vector fma(const Vector& x, const Vector& y, const Vector& z) {
  return {_mm256_fmadd_ps(x.low, y.low, z.low), _mm256_fmadd_ps(x.high, y.high, z.high)};
}
inline Vector fms(const Vector& x, const Vector& y, const Vector& z) {
  return {_mm256_fmsub_ps(x.low, y.low, z.low), _mm256_fmsub_ps(x.high, y.high, z.high)};
}
inline Vector fnma(const Vector& x, const Vector& y, const Vector& z) {
  return {_mm256_fnmadd_ps(x.low, y.low, z.low), _mm256_fnmadd_ps(x.high, y.high, z.high)};
}
inline Vector reciprocal(const Vector& x) { return {_mm256_rcp_ps(x.low), _mm256_rcp_ps(x.high)}; }
inline Vector magnitude(const Vector& x) {
  return halves([](__m256 a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }, x);
}
inline Vector nearest(const Vector& x) {
  return halves([](__m256 a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); },
                x);
}
inline Vector times_power(const Vector& x, const Vector& n) {
  return halves(
      [](__m256 a, __m256 power) {
        const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), power);
        const __m256 infinite = _mm256_cmp_ps(size, _mm256_set1_ps(__builtin_inff()), _CMP_EQ_OQ);
        a = _mm256_blendv_ps(a, _mm256_set1_ps(1.0f), infinite);
        // Two factors, each of them a normal number.
        power = _mm256_min_ps(_mm256_set1_ps(254.0f), _mm256_max_ps(_mm256_set1_ps(-252.0f), power));
        const __m256i whole = _mm256_cvtps_epi32(power), half = _mm256_srai_epi32(whole, 1);
        const auto two_to = [](__m256i e) {
          return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, _mm256_set1_epi32(127)), 23));
        };
        return a * two_to(half) * two_to(_mm256_sub_epi32(whole, half));
      },
      x, n);
}
inline Vector add_exponent(const Vector& x, const Vector& n) {
  return halves(
      [](__m256 a, __m256 b) {
        const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(b), 23);
        return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), exponent));
      },
      x, n);
}
inline Vector exponent_of(const Vector& x) {
  return halves(
      [](__m256 a) {
        const __m256i biased = _mm256_srli_epi32(_mm256_castps_si256(a), 23);
        return _mm256_cvtepi32_ps(_mm256_sub_epi32(biased, _mm256_set1_epi32(127)));
      },
      x);
}

inline Vector choose(Lanes lanes, const Vector& x, const Vector& y) {
  if (lanes == kAllLanes) return x;
  const HalfMasks mask(lanes);
  return {_mm256_blendv_ps(y.low, x.low, _mm256_castsi256_ps(mask.low)),
          _mm256_blendv_ps(y.high, x.high, _mm256_castsi256_ps(mask.high))};
}
inline Vector keep(Lanes lanes, const Vector& x) { return choose(lanes, x, zero()); }
inline Vector load_or(const Vector& other, const void* from, Lanes lanes) {
  return lanes == kAllLanes ? load(from) : choose(lanes, load(from, lanes), other);
}
inline Vector where_less(const Vector& a, const Vector& b, const Vector& x, const Vector& y) {
  return halves([](__m256 c, __m256 d, __m256 e,
                   __m256 f) { return _mm256_blendv_ps(f, e, _mm256_cmp_ps(c, d, _CMP_LT_OQ)); },
                a, b, x, y);
}
inline Lanes nonzero_bytes(const char* from, Lanes lanes) {
  unsigned found = 0;
  for (unsigned i = 0; i < kLanes; ++i) {
    if (lanes >> i & 1) found |= (from[i] != 0 ? 1u : 0u) << i;
  }
  return static_cast<Lanes>(found);
}

inline float sum_of(const Vector& x) {
  const __m256 both = x.low + x.high;
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float largest_of(const Vector& x) {
  const __m256 both = _mm256_max_ps(x.low, x.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

inline void transpose_halves(__m256 (&r)[8]) {
  __m256 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  __m256 u[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

inline void transpose(Vector (&r)[16]) {
  __m256 quarter[4][8];  // columns and rows: low low, low high, high low, high high
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    quarter[0][i] = r[i].low;
    quarter[1][i] = r[i + 8].low;
    quarter[2][i] = r[i].high;
    quarter[3][i] = r[i + 8].high;
  }
  for (auto& q : quarter) transpose_halves(q);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    r[i] = {quarter[0][i], quarter[1][i]};
    r[i + 8] = {quarter[2][i], quarter[3][i]};
  }
}

#endif

// The vectors of a tile with 6 rows whose sums fit the registers at once: four, or one.
constexpr int kTileVectors = kRegisters >= 32 ? 4 : 1;

}  // namespace
}  // namespace npu
