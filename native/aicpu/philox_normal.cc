// Normal numbers bit for bit as TensorFlow draws them: its layout of Philox words, its order of operations,
// and the functions of the C library, which vector code of our own differs from in last bits.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "aicpu/dispatch.h"
#include "core/parallel.h"

namespace npu::aicpu {
namespace {

using Block = std::array<std::uint32_t, 4>;

// Consecutive words of the counters, starting at a position.
class Words {
 public:
  Words(std::uint64_t key, std::uint64_t low, std::uint64_t high, std::uint64_t skip)
      : key_(key), low_(low + skip), high_(high + (low + skip < low)) {}

  std::uint32_t operator()() {
    if (used_ == block_.size()) next();
    return block_[used_++];
  }

 private:
  // Ten Philox rounds over one counter; advances the counter.
  void next() {
    constexpr std::uint64_t kM0 = 0xd2511f53u, kM1 = 0xcd9e8d57u;
    constexpr std::uint32_t kW0 = 0x9e3779b9u, kW1 = 0xbb67ae85u;
    Block c = {static_cast<std::uint32_t>(low_), static_cast<std::uint32_t>(low_ >> 32),
               static_cast<std::uint32_t>(high_), static_cast<std::uint32_t>(high_ >> 32)};
    auto k0 = static_cast<std::uint32_t>(key_), k1 = static_cast<std::uint32_t>(key_ >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = kM0 * c[0], b = kM1 * c[2];
      c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
           static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
      k0 += kW0;
      k1 += kW1;
    }
    if (++low_ == 0) ++high_;
    block_ = c;
    used_ = 0;
  }

  std::uint64_t key_, low_, high_;
  Block block_{};
  std::size_t used_ = 4;
};

float unit(Words& words, float) { return static_cast<float>(words() & 0x7fffffu) * 0x1p-23f; }

double unit(Words& words, double) {
  const std::uint64_t high = words() & 0xfffffu;
  return static_cast<double>(high << 32 | words()) * 0x1p-52;
}

// Two normal numbers by the Box-Muller transform.
template <class Real>
std::array<Real, 2> normal_pair(Words& words) {
  const Real first = std::max(unit(words, Real{}), static_cast<Real>(1.0e-7f));
  const auto angle = static_cast<Real>(2 * std::numbers::pi * static_cast<double>(unit(words, Real{})));
  const Real radius = std::sqrt(static_cast<Real>(-2) * std::log(first));
  return {std::sin(angle) * radius, std::cos(angle) * radius};
}

// A group of numbers from one counter, or redrawn until they are within two standard deviations.
template <class Real>
void draw_group(Words words, bool truncated, Real* group, std::size_t size) {
  for (std::size_t count = 0; count < size;) {
    for (const Real value : normal_pair<Real>(words)) {
      if (count < size && (!truncated || std::abs(value) < 2)) group[count++] = value;
    }
  }
}

constexpr std::int64_t kReserved = 256;  // words kept for each number where some are rejected
constexpr double kCycles = 240;          // of a group

template <class T, class Real>
void fill(const Call& call, bool truncated) {
  constexpr std::int64_t kGroup = sizeof(Real) == 8 ? 2 : 4;
  const Tensor& y = call.outputs[0];
  const auto state = [&](std::size_t i) { return *call.inputs[i].as<std::uint64_t>(); };
  const std::int64_t n = y.elements(), skip = truncated ? kGroup * kReserved / 4 : 1;
  parallel_for((n + kGroup - 1) / kGroup, grain(kCycles), [&](std::int64_t lo, std::int64_t hi) {
    for (std::int64_t g = lo; g < hi; ++g) {
      Real group[kGroup];
      const Words words(state(0), state(1), state(2), static_cast<std::uint64_t>(g * skip));
      draw_group(words, truncated, group, kGroup);
      const std::int64_t count = std::min(kGroup, n - g * kGroup);
      for (std::int64_t i = 0; i < count; ++i) y.as<T>()[g * kGroup + i] = static_cast<T>(group[i]);
    }
  });
}

// Inputs: key, low and high half of the counter, one uint64 each. Attribute "truncated".
Status philox_normal(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(3, 1));
  for (const Tensor& input : call.inputs) {
    if (input.dtype != DType::UInt64 || input.elements() != 1) {
      return Status::error("key and counter must be one uint64 each");
    }
  }
  const bool truncated = call.attrs.flag("truncated");
  return with_type(call.outputs[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T>) {
      return unsupported_type(call.outputs[0].dtype);
    } else {
      fill<T, std::conditional_t<std::is_same_v<T, double>, double, float>>(call, truncated);
      return Status::ok();
    }
  });
}

NPU_AICPU_KERNEL("philox_normal", philox_normal);

}  // namespace
}  // namespace npu::aicpu
