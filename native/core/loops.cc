// Reads the cache sizes of the first processor from Linux.
#include "core/loops.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <string>
#include <utility>

namespace npu {
namespace {

constexpr int kMostCaches = 8;
constexpr int kLevels = 3;

std::string word_of(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// "32K", "8M" or a plain number of bytes; 0 for anything else.
std::int64_t size_of(const std::string& text) {
  std::int64_t value = 0;
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c))) {
      value = std::min<std::int64_t>(value * 10 + (c - '0'), std::int64_t{1} << 40);
    } else {
      return c == 'K' ? value << 10 : c == 'M' ? value << 20 : 0;
    }
  }
  return value;
}

Loops read() {
  std::array<std::int64_t, kLevels + 1> sizes{};
  for (int index = 0; index < kMostCaches; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    const std::int64_t level = size_of(word_of(folder + "level"));
    if (level < 1 || level > kLevels || word_of(folder + "type") == "Instruction") continue;
    sizes[static_cast<std::size_t>(level)] = size_of(word_of(folder + "size"));
  }
  Loops found;
  const std::int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  if (largest == 0) return found;
  const auto size = [&](std::size_t level) { return sizes[level] ? sizes[level] : largest; };
  return {size(1), size(2), size(3)};
}

thread_local const Loops* current = nullptr;

}  // namespace

const Loops& host_loops() {
  static const Loops found = read();
  return found;
}

const Loops& loops() { return current ? *current : host_loops(); }

LoopsScope::LoopsScope(const Loops& loops) : before_(std::exchange(current, &loops)) {}
LoopsScope::~LoopsScope() { current = before_; }

}  // namespace npu
