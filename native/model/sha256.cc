// SHA-256 (FIPS 180-4), with the processor's instructions for it where it has them.
#include "model/sha256.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>

namespace npu {
namespace {

alignas(16) constexpr std::uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<std::uint32_t, 8>;

std::uint32_t big_endian(const std::byte* from) {
  std::uint32_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return __builtin_bswap32(word);
}

void compress(State& state, const std::byte* data, std::size_t blocks) {
  for (; blocks; --blocks, data += 64) {
    std::uint32_t w[64];
    for (int i = 0; i < 16; ++i) w[i] = big_endian(data + 4 * i);
    for (int i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int i = 0; i < 64; ++i) {
      const std::uint32_t one = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
      const std::uint32_t two =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
    }
    const State sum{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state[i] += sum[i];
  }
}

#if defined(__x86_64__)
// With SHA instructions, which keep the state as (A B E F) and (C D G H).
__attribute__((target("sha,sse4.1,ssse3"))) void compress_sha(State& state, const std::byte* data,
                                                              std::size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(&state[0]));   // D C B A
  __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(&state[4]));  // H G F E
  low = _mm_shuffle_epi32(low, 0xb1);
  high = _mm_shuffle_epi32(high, 0x1b);
  __m128i abef = _mm_alignr_epi8(low, high, 8);
  __m128i cdgh = _mm_blend_epi16(high, low, 0xf0);
  for (; blocks; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)), swap);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m128i sum =
          _mm_add_epi32(w[i & 3], _mm_load_si128(reinterpret_cast<const __m128i*>(kRounds + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      sum = _mm_shuffle_epi32(sum, 0x0e);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, sum);
      if (i >= 12) continue;
      // The words sixteen positions ahead, from four vectors.
      __m128i& oldest = w[i & 3];
      const __m128i second = w[(i + 1) & 3], third = w[(i + 2) & 3], newest = w[(i + 3) & 3];
      oldest = _mm_sha256msg1_epu32(oldest, second);
      oldest = _mm_add_epi32(oldest, _mm_alignr_epi8(newest, third, 4));
      oldest = _mm_sha256msg2_epu32(oldest, newest);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  low = _mm_shuffle_epi32(abef, 0x1b);   // F E B A
  high = _mm_shuffle_epi32(cdgh, 0xb1);  // H G D C
  _mm_storeu_si128(reinterpret_cast<__m128i*>(&state[0]), _mm_blend_epi16(low, high, 0xf0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(&state[4]), _mm_alignr_epi8(high, low, 8));
}

bool has_sha() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  return (b & (1u << 29)) && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3");
}

#endif

void compress_blocks(State& state, const std::byte* data, std::size_t blocks) {
#if defined(__x86_64__)
  static const bool fast = has_sha();
  if (fast) return compress_sha(state, data, blocks);
#endif
  compress(state, data, blocks);
}

}  // namespace

void Sha256::update(std::span<const std::byte> data) {
  const std::size_t held = bytes_ % 64;
  bytes_ += data.size();
  if (held) {
    const std::size_t count = std::min(data.size(), 64 - held);
    if (count) std::memcpy(block_.data() + held, data.data(), count);
    data = data.subspan(count);
    if (held + count < 64) return;
    compress_blocks(state_, block_.data(), 1);
  }
  const std::size_t whole = data.size() / 64;
  if (whole) compress_blocks(state_, data.data(), whole);
  data = data.subspan(64 * whole);
  if (!data.empty()) std::memcpy(block_.data(), data.data(), data.size());
}

Digest Sha256::finish() {
  const std::uint64_t bits = bytes_ * 8;
  std::array<std::byte, 72> padding{std::byte{0x80}};
  const std::size_t zeros = (bytes_ % 64 < 56 ? 56 : 120) - bytes_ % 64;
  for (std::size_t i = 0; i < 8; ++i) padding[zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(std::span(padding).first(zeros + 8));
  Digest digest;
  for (std::size_t i = 0; i < 32; ++i) {
    digest[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Digest sha256(std::span<const std::byte> data) {
  Sha256 hash;
  hash.update(data);
  return hash.finish();
}

Digest hmac_sha256(std::span<const std::byte> key, std::string_view purpose,
                   std::span<const std::byte> data) {
  std::array<std::byte, 64> inner, outer;
  inner.fill(std::byte{0x36});
  outer.fill(std::byte{0x5c});
  for (std::size_t i = 0; i < key.size(); ++i) {
    inner[i] ^= key[i];
    outer[i] ^= key[i];
  }
  Sha256 first, second;
  first.update(inner);
  first.update(std::as_bytes(std::span(purpose)));
  first.update(data);
  const Digest digest = first.finish();
  second.update(outer);
  second.update(std::as_bytes(std::span(digest)));
  return second.finish();
}

bool equal_digests(const Digest& a, std::span<const std::byte> b) {
  if (b.size() != a.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ std::to_integer<unsigned>(b[i]);
  return difference == 0;
}

}  // namespace npu
