// Packing of weights and their factors into panels.
#include "product/panels.h"

#include <algorithm>
#include <cstring>

#include "core/half.h"
#include "core/parallel.h"

namespace npu::product {
namespace {

constexpr std::int64_t kBlocks[] = {128, 64, 32, 16, 8};
constexpr std::int64_t kLargestRounded = 32;  // of a single digit
constexpr std::int64_t kHeader = 64;  // bytes before factors: the first tells whether they are float16

// The lowest four bits of a word's first, second, third and fourth half byte in a byte each.
std::uint32_t spread(std::uint32_t half_bytes) {
  const std::uint32_t pairs = (half_bytes | half_bytes << 8) & 0x00ff00ffu;
  return (pairs | pairs << 4) & 0x0f0f0f0fu;
}

void pack_panel(const PanelProblem& p, const char* from, std::int64_t panel, char* to) {
  const std::int64_t words = p.blocks() * p.block * p.bits / 32;  // of a column
  const std::uint32_t flip = !p.is_signed  ? 0
                             : p.bits == 4 ? 0x88888888u
                                           : 0x80808080u;  // counted from the middle
  for (std::int64_t c = 0; c < kPanelColumns; ++c) {
    const std::int64_t column = panel * kPanelColumns + c;
    const char* const row = from + column * p.row_bytes;
    for (std::int64_t w = 0; w < words; ++w) {
      std::uint32_t bits = 0;
      if (column < p.columns && 4 * w < p.row_bytes) {
        std::memcpy(&bits, row + 4 * w,
                    static_cast<std::size_t>(std::min<std::int64_t>(p.row_bytes - 4 * w, 4)));
      }
      bits ^= flip;
      if (p.bits == 4) bits = spread(bits & 0xffffu) | spread(bits >> 16) << 4;
      std::memcpy(to + (w * kPanelColumns + c) * 4, &bits, 4);
    }
  }
}

}  // namespace

std::int64_t PanelProblem::factor_bytes() const { return kHeader + panels() * groups * kPanelColumns * 4; }

std::int64_t panel_block(std::int64_t depth, std::int64_t group, int digits) {
  for (const std::int64_t block : kBlocks) {
    if (digits == 1 && block > kLargestRounded) continue;
    if (group >= depth ? block <= std::max<std::int64_t>(depth, 8) : group % block == 0) return block;
  }
  return 0;
}

void pack_panels(const PanelProblem& p, const char* from, char* to) {
  const std::int64_t size = p.blocks() * p.block_bytes();
  parallel_for(p.panels(), 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t panel = first; panel < last; ++panel) pack_panel(p, from, panel, to + panel * size);
  });
}

void pack_factors(const PanelProblem& p, const char* from, char* to) {
  const std::int64_t count = p.columns * p.groups;
  const auto at = [=](std::int64_t i) {
    float value;
    std::memcpy(&value, from + 4 * i, sizeof value);
    return value;
  };
  bool is_half = true;
  for (std::int64_t i = 0; i < count && is_half; ++i) is_half = static_cast<float>(Float16(at(i))) == at(i);
  std::memset(to, 0, static_cast<std::size_t>(p.factor_bytes()));
  to[0] = is_half;
  to += kHeader;
  for (std::int64_t column = 0; column < p.columns; ++column) {
    for (std::int64_t g = 0; g < p.groups; ++g) {
      const std::int64_t place =
          (column / kPanelColumns * p.groups + g) * kPanelColumns + column % kPanelColumns;
      const float value = at(column * p.groups + g);
      const Float16 half(value);
      if (is_half) {
        std::memcpy(to + 2 * place, &half, sizeof half);
      } else {
        std::memcpy(to + 4 * place, &value, sizeof value);
      }
    }
  }
}

}  // namespace npu::product
