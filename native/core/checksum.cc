// Each chunk is read by 32 lanes of 64 bits. A lane's step is a bijection of its state for a given word and
// of the word for a given state, so that a change of one word always changes the lane.
#include "core/checksum.h"

#include <cstring>

#include "core/parallel.h"

namespace npu {
namespace {

constexpr std::size_t kChunk = 1 << 20;
constexpr std::size_t kLanes = 32;
constexpr std::size_t kBlock = kLanes * sizeof(std::uint64_t);
constexpr std::uint64_t kWordFactor = 0xd6e8feb86659fd93;
constexpr std::uint64_t kStateFactor = 0xa0761d6478bd642f;

std::uint64_t rotate(std::uint64_t value, int bits) { return (value << bits) | (value >> (64 - bits)); }

// Spreads every bit over the whole word.
std::uint64_t spread(std::uint64_t value) {
  value = (value ^ (value >> 32)) * kWordFactor;
  value = (value ^ (value >> 29)) * kStateFactor;
  return value ^ (value >> 32);
}

void take(std::uint64_t* state, const std::uint64_t* words) {
  for (std::size_t i = 0; i < kLanes; ++i) {
    state[i] = rotate(state[i] ^ (words[i] * kWordFactor), 29) * kStateFactor + i;
  }
}

ChunkSum chunk_sum(const char* data, std::size_t bytes) {
  std::uint64_t state[kLanes], words[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) state[i] = spread(bytes + i * kStateFactor);
  std::size_t done = 0;
  for (; done + kBlock <= bytes; done += kBlock) {
    std::memcpy(words, data + done, kBlock);
    take(state, words);
  }
  if (done < bytes) {
    std::memset(words, 0, kBlock);
    std::memcpy(words, data + done, bytes - done);
    take(state, words);
  }
  ChunkSum sum{};
  for (std::size_t i = 0; i < kLanes; ++i) sum[i % 4] = spread(sum[i % 4] * kStateFactor + state[i]);
  return sum;
}

}  // namespace

std::vector<ChunkSum> chunk_sums(const void* data, std::size_t bytes) {
  const auto* begin = static_cast<const char*>(data);
  std::vector<ChunkSum> sums((bytes + kChunk - 1) / kChunk);
  parallel_for(static_cast<std::int64_t>(sums.size()), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const auto place = static_cast<std::size_t>(i) * kChunk;
      sums[static_cast<std::size_t>(i)] = chunk_sum(begin + place, std::min(kChunk, bytes - place));
    }
  });
  return sums;
}

}  // namespace npu
