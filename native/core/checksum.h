// Checksums of large memory at memory bandwidth: they detect changed contents, not forged ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace npu {

using ChunkSum = std::array<std::uint64_t, 4>;

// One checksum per MiB of the data, computed by all threads.
std::vector<ChunkSum> chunk_sums(const void* data, std::size_t bytes);

}  // namespace npu
