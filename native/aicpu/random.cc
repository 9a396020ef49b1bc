// Random numbers from the Philox 4x32-10 counter generator: the same state gives the same numbers on any
// number of threads.
//
// Every kernel takes its state as the last input, int64 [key, counter], or from attributes "seed" and
// "offset"; an extra last output, int64 [2], receives the state after the call. Without a state in the input
// every run of a task has numbers of its own, and with seed 0 every program that is loaded, too.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>

#include "aicpu/dispatch.h"
#include "core/parallel.h"
#include "core/strided.h"

namespace npu::aicpu {
namespace {

using Block = std::array<std::uint32_t, 4>;

struct State {
  std::uint64_t key = 0;
  std::uint64_t counter = 0;
};

// Ten Philox rounds over one counter value.
Block philox(State state, std::uint64_t step) {
  constexpr std::uint64_t kM0 = 0xd2511f53u, kM1 = 0xcd9e8d57u;
  constexpr std::uint32_t kW0 = 0x9e3779b9u, kW1 = 0xbb67ae85u;
  const std::uint64_t low = state.counter + step;
  Block c = {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), 0, 0};
  auto k0 = static_cast<std::uint32_t>(state.key), k1 = static_cast<std::uint32_t>(state.key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = kM0 * c[0], b = kM1 * c[2];
    c = {static_cast<std::uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(a)};
    k0 += kW0;
    k1 += kW1;
  }
  return c;
}

float unit_float(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

double unit_double(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

// Two independent normal numbers from two uniform ones.
std::pair<double, double> box_muller(double u, double v) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - u));
  const double angle = 2.0 * std::numbers::pi * v;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// The operands of a random kernel with the state split off.
class RandomCall {
 public:
  static Status open(Call& call, std::size_t data_inputs, std::size_t data_outputs, RandomCall& opened) {
    const bool has_input = call.inputs.size() == data_inputs + 1;
    const bool has_output = call.outputs.size() == data_outputs + 1;
    if ((!has_input && call.inputs.size() != data_inputs) ||
        (!has_output && call.outputs.size() != data_outputs)) {
      return Status::error("takes " + std::to_string(data_inputs) + " inputs and gives " +
                           std::to_string(data_outputs) + " outputs, besides the state");
    }
    const auto seed = static_cast<std::uint64_t>(call.attrs.integer("seed", 0));
    opened.state = {seed ? seed : call.own_seed,
                    static_cast<std::uint64_t>(call.attrs.integer("offset", 0)) + (call.run << 32)};
    if (has_input) {
      const Tensor& given = call.inputs.back();
      if (given.dtype != DType::Int64 || given.elements() != 2)
        return Status::error("the state must be int64 [2]");
      opened.state = {static_cast<std::uint64_t>(given.as<std::int64_t>()[0]),
                      static_cast<std::uint64_t>(given.as<std::int64_t>()[1])};
    }
    if (has_output) {
      opened.next_ = &call.outputs.back();
      if (opened.next_->dtype != DType::Int64 || opened.next_->elements() != 2) {
        return Status::error("the state must be int64 [2]");
      }
    }
    return Status::ok();
  }

  Status close(std::int64_t blocks) const {
    if (next_) {
      next_->as<std::int64_t>()[0] = static_cast<std::int64_t>(state.key);
      next_->as<std::int64_t>()[1] =
          static_cast<std::int64_t>(state.counter + static_cast<std::uint64_t>(blocks));
    }
    return Status::ok();
  }

  State state;

 private:
  Tensor* next_ = nullptr;
};

constexpr double kCycles = 15;  // of a number

// Fills n elements, `per_block` from each counter value: make(block, i) gives the i-th of them.
template <class T, class Make>
std::int64_t fill(State state, T* out, std::int64_t n, std::int64_t per_block, const Make& make) {
  const std::int64_t blocks = (n + per_block - 1) / per_block;
  parallel_for(blocks, grain(kCycles, per_block), [&](std::int64_t lo, std::int64_t hi) {
    for (std::int64_t b = lo; b < hi; ++b) {
      const Block block = philox(state, static_cast<std::uint64_t>(b));
      const std::int64_t count = std::min(per_block, n - b * per_block);
      for (std::int64_t i = 0; i < count; ++i) out[b * per_block + i] = make(block, i);
    }
  });
  return blocks;
}

template <class T>
std::int64_t fill_uniform(const Call& call, State state, const Tensor& y) {
  T* out = y.as<T>();
  if constexpr (std::is_same_v<T, bool>) {
    return fill(state, out, y.elements(), 4,
                [](const Block& b, std::int64_t i) { return (b[static_cast<std::size_t>(i)] & 1u) != 0; });
  } else if constexpr (std::is_integral_v<T>) {
    const std::int64_t low = call.attrs.integer("low", 0);
    const auto range =
        static_cast<std::uint64_t>(call.attrs.integer("high", 0)) - static_cast<std::uint64_t>(low);
    return fill(state, out, y.elements(), 2, [=](const Block& b, std::int64_t i) {
      const std::uint64_t bits = static_cast<std::uint64_t>(b[static_cast<std::size_t>(2 * i)]) << 32 |
                                 b[static_cast<std::size_t>(2 * i + 1)];
      return static_cast<T>(static_cast<std::uint64_t>(low) + (range ? bits % range : bits));
    });
  } else {
    const double low = call.attrs.real("low", 0), high = call.attrs.real("high", 1);
    if constexpr (std::is_same_v<T, double>) {
      return fill(state, out, y.elements(), 2, [=](const Block& b, std::int64_t i) {
        return low + (high - low) * unit_double(b[static_cast<std::size_t>(2 * i)],
                                                b[static_cast<std::size_t>(2 * i + 1)]);
      });
    } else {
      const auto base = static_cast<float>(low), width = static_cast<float>(high - low);
      return fill(state, out, y.elements(), 4, [=](const Block& b, std::int64_t i) {
        return static_cast<T>(base + width * unit_float(b[static_cast<std::size_t>(i)]));
      });
    }
  }
}

Status random_uniform(Call& call) {
  RandomCall random;
  NPU_RETURN_IF_ERROR(RandomCall::open(call, 0, 1, random));
  return with_type(call.outputs[0].dtype, [&](auto zero) {
    return random.close(fill_uniform<decltype(zero)>(call, random.state, call.outputs[0]));
  });
}

Status random_normal(Call& call) {
  RandomCall random;
  NPU_RETURN_IF_ERROR(RandomCall::open(call, 0, 1, random));
  const double mean = call.attrs.real("mean", 0), scale = call.attrs.real("scale", 1);
  const Tensor& y = call.outputs[0];
  if (!is_float(y.dtype)) return unsupported_type(y.dtype);
  return with_type(y.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, double>) {
      return random.close(fill(random.state, y.as<T>(), y.elements(), 2, [=](const Block& b, std::int64_t i) {
        const auto [first, second] = box_muller(unit_double(b[0], b[1]), unit_double(b[2], b[3]));
        return mean + scale * (i ? second : first);
      }));
    } else if constexpr (std::is_integral_v<T>) {
      return unsupported_type(y.dtype);
    } else {
      return random.close(fill(random.state, y.as<T>(), y.elements(), 4, [=](const Block& b, std::int64_t i) {
        const auto pair = static_cast<std::size_t>(i / 2 * 2);
        const auto [first, second] = box_muller(unit_float(b[pair]), unit_float(b[pair + 1]));
        return static_cast<T>(static_cast<float>(mean + scale * (i % 2 ? second : first)));
      }));
    }
  });
}

// Input: probabilities. Output: 1 where a uniform number falls below, else 0.
Status bernoulli(Call& call) {
  RandomCall random;
  NPU_RETURN_IF_ERROR(RandomCall::open(call, 1, 1, random));
  const Tensor& p = call.inputs[0];
  const Tensor& y = call.outputs[0];
  if (!is_float(p.dtype) || p.elements() != y.elements()) {
    return Status::error("one float probability for each output is needed");
  }
  std::vector<float> draws(static_cast<std::size_t>(y.elements()));
  const std::int64_t blocks =
      fill(random.state, draws.data(), y.elements(), 4,
           [](const Block& b, std::int64_t i) { return unit_float(b[static_cast<std::size_t>(i)]); });
  std::vector<double> chances(draws.size());
  convert_row(p.dtype, DType::Float64, p.as<char>(), static_cast<std::int64_t>(dtype_size(p.dtype)),
              reinterpret_cast<char*>(chances.data()), 8, p.elements());
  for (std::size_t i = 0; i < draws.size(); ++i)
    draws[i] = static_cast<double>(draws[i]) < chances[i] ? 1.f : 0.f;
  convert_row(DType::Float32, y.dtype, reinterpret_cast<const char*>(draws.data()), 4, y.as<char>(),
              static_cast<std::int64_t>(dtype_size(y.dtype)), y.elements());
  return random.close(blocks);
}

std::vector<std::int64_t> draw_classes(State state, std::vector<double> logits, std::int64_t rows,
                                       std::int64_t samples) {
  std::vector<std::int64_t> draws;
  const std::int64_t classes = static_cast<std::int64_t>(logits.size()) / rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto begin = logits.begin() + r * classes, end = begin + classes;
    const double most = *std::max_element(begin, end);
    double total = 0;
    for (auto it = begin; it != end; ++it) *it = total += std::exp(*it - most);  // running sums
    for (std::int64_t s = 0; s < samples; ++s) {
      const Block block = philox(state, static_cast<std::uint64_t>(draws.size()));
      const double target = unit_double(block[0], block[1]) * total;
      draws.push_back(std::min<std::int64_t>(std::upper_bound(begin, end, target) - begin, classes - 1));
    }
  }
  return draws;
}

// Input: unnormalised log probabilities (rows, classes). Output: int32 or int64 (rows, samples).
Status multinomial(Call& call) {
  RandomCall random;
  NPU_RETURN_IF_ERROR(RandomCall::open(call, 1, 1, random));
  const Tensor& logits = call.inputs[0];
  const Tensor& y = call.outputs[0];
  if (logits.rank() != 2 || y.rank() != 2 || y.dims[0] != logits.dims[0] || !is_float(logits.dtype)) {
    return Status::error("expects float logits (rows, classes) and an output (rows, samples)");
  }
  if (logits.dims[1] < 1) return Status::error("there are no classes to draw from");
  if (y.elements() == 0) return random.close(0);
  std::vector<double> values(static_cast<std::size_t>(logits.elements()));
  convert_row(logits.dtype, DType::Float64, logits.as<char>(),
              static_cast<std::int64_t>(dtype_size(logits.dtype)), reinterpret_cast<char*>(values.data()), 8,
              logits.elements());
  const auto draws = draw_classes(random.state, std::move(values), logits.dims[0], y.dims[1]);
  NPU_RETURN_IF_ERROR(write_indices(draws, y));
  return random.close(static_cast<std::int64_t>(draws.size()));
}

// Output: the numbers 0 to n - 1 in random order.
Status random_permutation(Call& call) {
  RandomCall random;
  NPU_RETURN_IF_ERROR(RandomCall::open(call, 0, 1, random));
  const Tensor& y = call.outputs[0];
  return with_index_type(y.dtype, [&](auto zero) {
    using Index = decltype(zero);
    Index* out = y.as<Index>();
    const std::int64_t n = y.elements();
    std::iota(out, out + n, Index{0});
    for (std::int64_t i = n - 1; i > 0; --i) {
      const Block block = philox(random.state, static_cast<std::uint64_t>(n - 1 - i));
      const std::uint64_t bits = static_cast<std::uint64_t>(block[0]) << 32 | block[1];
      std::swap(out[i], out[bits % static_cast<std::uint64_t>(i + 1)]);
    }
    return random.close(n);
  });
}

NPU_AICPU_KERNEL("random_uniform", random_uniform);
NPU_AICPU_KERNEL("random_normal", random_normal);
NPU_AICPU_KERNEL("bernoulli", bernoulli);
NPU_AICPU_KERNEL("multinomial", multinomial);
NPU_AICPU_KERNEL("random_permutation", random_permutation);

}  // namespace
}  // namespace npu::aicpu
