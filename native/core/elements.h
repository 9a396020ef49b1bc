// Element types of vectors: float32, and bfloat16 on processors with dot products of bfloat16 pairs.
//
// Products take words of 32 bits: a float32, or two bfloat16 along the depth of the sum.
#pragma once

#include "core/dtype.h"
#include "core/vectors.h"

namespace npu {
namespace {  // compiled for each file's own instructions

struct Float32 {
  using Value = float;
  static constexpr std::int64_t kInWord = 1;

  static Vector load(const Value* from, Lanes lanes = kAllLanes) { return npu::load(from, lanes); }
  static void store(Value* to, Lanes lanes, Vector x) { npu::store(to, lanes, x); }
  static void store_two(Value* to, Vector first, Vector second) {
    npu::store(to, first);
    npu::store(to + kLanes, second);
  }
  static void stream_two(Value* to, Vector first, Vector second) {
    npu::stream(to, first);
    npu::stream(to + kLanes, second);
  }
  static Vector splat_word(const Value* from) { return splat(*from); }
  static Vector multiply(Vector words, Vector weights, Vector sum) { return fma(words, weights, sum); }
};

#ifdef __AVX512BF16__

struct BFloat16 {
  using Value = std::uint16_t;
  static constexpr std::int64_t kInWord = 2;

  static __m512i wide(const Value* from, Lanes lanes = kAllLanes) {
    return _mm512_cvtepu16_epi32(lanes == kAllLanes
                                     ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))
                                     : _mm256_maskz_loadu_epi16(lanes, from));
  }
  static Vector load(const Value* from, Lanes lanes = kAllLanes) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide(from, lanes), 16));
  }
  static void store(Value* to, Lanes lanes, Vector x) {
    const auto narrow = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
    if (lanes == kAllLanes) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow);
    _mm256_mask_storeu_epi16(to, lanes, narrow);
  }
  static __m512i narrowed(Vector first, Vector second) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  }
  static void store_two(Value* to, Vector first, Vector second) {
    _mm512_storeu_si512(to, narrowed(first, second));
  }
  static void stream_two(Value* to, Vector first, Vector second) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), narrowed(first, second));
  }
  static Vector splat_word(const Value* from) {
    int pair;
    __builtin_memcpy(&pair, from, sizeof pair);
    return _mm512_castsi512_ps(_mm512_set1_epi32(pair));
  }
  static Vector multiply(Vector words, Vector weights, Vector sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(words), reinterpret_cast<__m512bh>(weights));
  }
};

#endif

// Calls make.template operator()<Element>() for an element type; nullptr if these vectors have no
// instructions for it.
template <class Make>
auto for_type(DType type, Make&& make) -> decltype(make.template operator()<Float32>()) {
  if (type == DType::Float32) return make.template operator()<Float32>();
#ifdef __AVX512BF16__
  if (type == DType::BFloat16) return make.template operator()<BFloat16>();
#endif
  return nullptr;
}

}  // namespace
}  // namespace npu
