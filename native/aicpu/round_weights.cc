// round_weights: float32 weights in a 16-bit float, rounded so that the errors of the sums they go into
// cancel.
#include <algorithm>
#include <cmath>
#include <limits>

#include "aicpu/dispatch.h"
#include "core/parallel.h"

namespace npu::aicpu {
namespace {

// How much the error of a sum counts beside the errors of its terms: what a window sees of one channel is
// nearly equal, and what channels have in common is their mean.
constexpr float kTogether = 4.0f;
constexpr int kFlipsInWindow = 4;
constexpr int kLastFlips = 3;
constexpr std::int64_t kLongSum = 512;  // above this number greedy selection is accurate enough
constexpr std::int64_t kBlock = 16;     // rows that are read together where they are adjacent
constexpr double kCycles = 4;           // of a weight

// Where the weights of one output (a row) are: channels times taps, and how the rows follow one another.
struct Layout {
  std::int64_t batch, rows, channels, taps;
  std::int64_t row_step, channel_step, tap_step;

  std::int64_t row_size() const { return channels * taps; }
};

template <class T>
T other_neighbour(T nearest, float weight) {
  const bool below = std::abs(static_cast<float>(nearest)) < std::abs(weight);
  T other;
  other.bits = static_cast<std::uint16_t>(nearest.bits - 1 + 2 * static_cast<int>(below));
  return other;
}

// Increase of the squared error by rounding to the other neighbour.
float added(float change, float error) { return change * (change + 2 * error); }

// Chooses the neighbours of one row. A weight has the error of the number it was given, and a change: what
// the other neighbour would add to that error, 0 where there is no choice.
class Row {
 public:
  Row(std::int64_t channels, std::int64_t taps)
      : channels_(channels),
        taps_(taps),
        errors_(static_cast<std::size_t>(channels * taps)),
        changes_(static_cast<std::size_t>(channels * taps)),
        sums_(static_cast<std::size_t>(channels)) {}

  template <class T>
  void set(std::int64_t i, T nearest, float weight) {
    const auto value = static_cast<float>(nearest);
    const auto change = static_cast<float>(other_neighbour(nearest, weight)) - value;
    const bool free = (value != weight) & (std::abs(change) <= std::numeric_limits<float>::max());
    errors_[static_cast<std::size_t>(i)] = free ? value - weight : 0;
    changes_[static_cast<std::size_t>(i)] = free ? change : 0;
  }

  void settle(const float* means) {
    flipped_.clear();
    if (taps_ > 1) {
      for (std::int64_t c = 0; c < channels_; ++c) settle_window(c);
    }
    if (channels_ == 1) return;
    const float squares = add_up(means);
    if (squares == 0) return;
    settle_total(means, squares);
    if (channels_ * taps_ > kLongSum) return;
    for (int i = 0; i < kLastFlips && flip_best(means); ++i) {
    }
  }

  // The weights that may have got the other neighbour, and whether one did: errors have opposite signs.
  const std::vector<std::int64_t>& flipped() const { return flipped_; }
  bool is_above(std::int64_t i) const { return errors_[static_cast<std::size_t>(i)] > 0; }

 private:
  // Makes the errors of one channel's taps mostly cancel.
  void settle_window(std::int64_t channel) {
    const float* const errors = errors_.data() + channel * taps_;
    const float* const changes = changes_.data() + channel * taps_;
    float sum = 0;
    for (std::int64_t t = 0; t < taps_; ++t) sum += errors[t];
    for (int flips = 0; flips < kFlipsInWindow; ++flips) {
      std::int64_t best = -1;
      float least = 0;
      for (std::int64_t t = 0; t < taps_; ++t) {
        const float cost = added(changes[t], errors[t]) + kTogether * added(changes[t], sum);
        if (cost < least) {
          least = cost;
          best = t;
        }
      }
      if (best < 0) break;
      sum += changes[best];
      flip(channel * taps_ + best);
    }
    sums_[static_cast<std::size_t>(channel)] = sum;
  }

  // Sums the errors up, each times its channel's mean; returns the sum of the means' squares.
  float add_up(const float* means) {
    float total = 0, squares = 0;
    const float* const terms = taps_ == 1 ? errors_.data() : sums_.data();
#pragma omp simd reduction(+ : total, squares)
    for (std::int64_t c = 0; c < channels_; ++c) {
      total += means[c] * terms[c];
      squares += means[c] * means[c];
    }
    total_ = total;
    return squares * static_cast<float>(taps_);
  }

  void flip(std::int64_t i) {
    errors_[static_cast<std::size_t>(i)] += changes_[static_cast<std::size_t>(i)];
    changes_[static_cast<std::size_t>(i)] = -changes_[static_cast<std::size_t>(i)];
    flipped_.push_back(i);
  }

  void take(std::int64_t i, float weighted) {
    total_ += weighted;
    sums_[static_cast<std::size_t>(i / taps_)] += changes_[static_cast<std::size_t>(i)];
    flip(i);
  }

  // Takes the cheapest flips, by their cost for what they change, until they make up for the error of the
  // sum.
  void settle_total(const float* means, float squares) {
    const float window = taps_ == 1 ? 0 : kTogether;
    const float limit = 4 * (1 + window) * std::abs(total_) / squares;  // twice the average need
    const float side = total_ < 0 ? 1.0f : -1.0f;
    const float *const errors = errors_.data(), *const changes = changes_.data(), *const sums = sums_.data();
    candidates_.clear();
    for (std::int64_t c = 0, i = 0; c < channels_; ++c) {
      const float mean = side * means[c], sum = taps_ == 1 ? 0 : sums[c];
      for (std::int64_t t = 0; t < taps_; ++t, ++i) {
        const float gain = changes[i] * mean;
        const float cost = added(changes[i], errors[i]) + window * added(changes[i], sum);
        // Few pass: one condition without inner branches.
        if ((gain > 0) & (cost < limit * gain)) candidates_.emplace_back(cost / gain, i);
      }
    }
    std::sort(candidates_.begin(), candidates_.end());
    for (const auto& [price, i] : candidates_) {
      const float weighted = changes_[static_cast<std::size_t>(i)] * means[i / taps_];
      if (std::abs(total_ + weighted) < std::abs(total_)) take(i, weighted);
    }
  }

  bool flip_best(const float* means) {
    const float window = taps_ == 1 ? 0 : kTogether;
    std::int64_t best = -1;
    float least = 0;
    for (std::int64_t c = 0, i = 0; c < channels_; ++c) {
      const float mean = means[c], sum = sums_[static_cast<std::size_t>(c)];
      for (std::int64_t t = 0; t < taps_; ++t, ++i) {
        const float change = changes_[static_cast<std::size_t>(i)];
        const float cost = added(change, errors_[static_cast<std::size_t>(i)]) + window * added(change, sum) +
                           kTogether * added(change * mean, total_);
        if (cost < least) {
          least = cost;
          best = i;
        }
      }
    }
    if (best < 0) return false;
    take(best, changes_[static_cast<std::size_t>(best)] * means[best / taps_]);
    return true;
  }

  std::int64_t channels_;
  std::int64_t taps_;
  std::vector<float> errors_;
  std::vector<float> changes_;
  std::vector<float> sums_;  // of the errors of each channel's taps
  float total_ = 0;          // of all errors, each times its channel's mean
  std::vector<std::int64_t> flipped_;
  std::vector<std::pair<float, std::int64_t>> candidates_;
};

// Rounds `count` rows, the first of which begins at the pointers.
template <class T>
void round_block(const float* weights, const Layout& layout, std::int64_t count, const float* const* means,
                 std::vector<Row>& rows, T* result) {
  for (std::int64_t c = 0; c < layout.channels; ++c) {
    for (std::int64_t t = 0; t < layout.taps; ++t) {
      const std::int64_t at = c * layout.channel_step + t * layout.tap_step;
      for (std::int64_t r = 0; r < count; ++r) {
        const float weight = weights[at + r * layout.row_step];
        const T nearest(weight);
        result[at + r * layout.row_step] = nearest;
        rows[static_cast<std::size_t>(r)].set(c * layout.taps + t, nearest, weight);
      }
    }
  }
  for (std::int64_t r = 0; r < count; ++r) {
    Row& row = rows[static_cast<std::size_t>(r)];
    row.settle(means[r]);
    for (const std::int64_t i : row.flipped()) {
      const std::int64_t at =
          r * layout.row_step + i / layout.taps * layout.channel_step + i % layout.taps * layout.tap_step;
      const T nearest(weights[at]);
      const bool kept = row.is_above(i) == (static_cast<float>(nearest) > weights[at]);
      result[at] = kept ? nearest : other_neighbour(nearest, weights[at]);
    }
  }
}

template <class T>
void round_all(const float* weights, const Layout& layout, const Tensor& means, T* result) {
  const std::int64_t groups = means.dims[0];
  const std::int64_t blocks = (layout.rows + kBlock - 1) / kBlock;
  const std::int64_t block_size = layout.row_size() * kBlock;
  parallel_for(layout.batch * blocks, grain(kCycles, block_size), [&](std::int64_t lo, std::int64_t hi) {
    std::vector<Row> rows(static_cast<std::size_t>(kBlock), Row(layout.channels, layout.taps));
    for (std::int64_t block = lo; block < hi; ++block) {
      const std::int64_t first = block % blocks * kBlock;
      const std::int64_t offset = block / blocks * layout.rows * layout.row_size() + first * layout.row_step;
      const std::int64_t count = std::min(kBlock, layout.rows - first);
      const float* row_means[kBlock];
      for (std::int64_t r = 0; r < count; ++r) {
        row_means[r] = means.as<float>() + (first + r) / (layout.rows / groups) * layout.channels;
      }
      round_block(weights + offset, layout, count, row_means, rows, result + offset);
    }
  });
}

Layout layout_of(const Dims& dims, bool rows_last) {
  if (rows_last) return {dims[0], dims[3], dims[2], dims[1], 1, dims[3], dims[2] * dims[3]};
  return {dims[0], dims[1], dims[2], dims[3], dims[2] * dims[3], dims[3], 1};
}

Status round_weights(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(2, 1));
  const Tensor &weights = call.inputs[0], &means = call.inputs[1], &result = call.outputs[0];
  if (weights.dtype != DType::Float32 || means.dtype != DType::Float32) {
    return Status::error("weights and means must be float32");
  }
  if (weights.rank() != 4 || result.dims != weights.dims) return Status::error("the operands do not match");
  const Layout layout = layout_of(weights.dims, call.attrs.flag("rows_last"));
  if (weights.elements() == 0) return Status::ok();
  if (means.rank() != 2 || means.dims[1] != layout.channels || means.dims[0] < 1 ||
      layout.rows % means.dims[0]) {
    return Status::error("the means do not match the weights");
  }
  switch (result.dtype) {
    case DType::BFloat16:
      round_all(weights.as<float>(), layout, means, result.as<BFloat16>());
      return Status::ok();
    case DType::Float16:
      round_all(weights.as<float>(), layout, means, result.as<Float16>());
      return Status::ok();
    default:
      return unsupported_type(result.dtype);
  }
}

NPU_AICPU_KERNEL("round_weights", round_weights);

}  // namespace
}  // namespace npu::aicpu
