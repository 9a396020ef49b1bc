// SHA-256 and its keyed form, for the checksums and the seal of model files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace npu {

using Digest = std::array<std::uint8_t, 32>;

class Sha256 {
 public:
  void update(std::span<const std::byte> data);
  Digest finish();

 private:
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  std::uint64_t bytes_ = 0;
};

Digest sha256(std::span<const std::byte> data);
// HMAC-SHA-256 with a key of at most 64 bytes.
Digest hmac_sha256(std::span<const std::byte> key, std::string_view purpose, std::span<const std::byte> data);
// Compares without telling by its time where the first difference is.
bool equal_digests(const Digest& a, std::span<const std::byte> b);

}  // namespace npu
