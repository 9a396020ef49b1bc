// Last step of weight gradients: copies sums from scratch memory to the target layout.
#include "convolution/weight_target.h"

#include <algorithm>

#include "convolution/spread.h"
#include "core/parallel.h"

namespace npu::convolution {
namespace {

constexpr std::int64_t kBlock = 256;  // inputs whose weights of all taps are put in order together

// Sums (h, w, O, I) to weights (O, I, h, w) with strides.
struct Order {
  DType type;
  Dims dims, strides;

  std::int64_t taps() const { return dims[2] * dims[3]; }
};

void put(const float* from, std::int64_t count, SpreadFn, float* to, std::int64_t step) {
  for (std::int64_t i = 0; i < count; ++i) to[i * step] = from[i];
}

void put(const float* from, std::int64_t count, SpreadFn round, std::uint16_t* to, std::int64_t step) {
  if (step == 1) return round(from, count, false, to);
  std::uint16_t rounded[kBlock];
  round(from, count, false, rounded);
  for (std::int64_t i = 0; i < count; ++i) to[i * step] = rounded[i];
}

template <class T>
void put_row(const Order& order, const float* sums, SpreadFn round, std::int64_t o, T* weights) {
  const std::int64_t inputs = order.dims[1];
  for (std::int64_t i = 0; i < inputs; i += kBlock) {
    for (std::int64_t tap = 0; tap < order.taps(); ++tap) {
      T* to = weights + o * order.strides[0] + i * order.strides[1] + tap / order.dims[3] * order.strides[2] +
              tap % order.dims[3] * order.strides[3];
      put(sums + (tap * order.dims[0] + o) * inputs + i, std::min(kBlock, inputs - i), round, to,
          order.strides[1]);
    }
  }
}

class BoundPut : public BoundStep {
 public:
  explicit BoundPut(const Order& order) : order_(order), round_(spread(order.type)) {}

  void run(RunState&) override {
    const auto* from = static_cast<const float*>(sums);
    parallel_for(order_.dims[0], 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t o = begin; o < end; ++o) {
        if (order_.type == DType::Float32) {
          put_row(order_, from, round_, o, static_cast<float*>(weights));
        } else {
          put_row(order_, from, round_, o, static_cast<std::uint16_t*>(weights));
        }
      }
    });
  }

  void* sums = nullptr;
  void* weights = nullptr;

 private:
  const Order& order_;
  SpreadFn round_;
};

class PutStep : public Step {
 public:
  PutStep(Order order, const Location& sums, const Location& weights)
      : order_(std::move(order)), sums_(sums), weights_(weights) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<BoundPut>(order_);
    binder.address(&bound->sums, sums_);
    binder.address(&bound->weights, weights_);
    return bound;
  }

 private:
  Order order_;
  Location sums_, weights_;
};

}  // namespace

WeightTarget::WeightTarget(const View& weights)
    : weights_(weights),
      direct_(weights.dtype == DType::Float32 && (weights.strides[0] == 1 || weights.strides[1] == 1)),
      strides_(weights.strides) {
  if (direct_) return;
  const Dims& dims = weights.dims;
  const std::int64_t tap = dims[0] * dims[1];
  strides_ = {dims[1], 1, dims[3] * tap, tap};
}

bool WeightTarget::fits() const {
  return direct_ || weights_.dtype == DType::Float32 ||
         (weights_.dtype == DType::BFloat16 && spread(DType::BFloat16));
}

Location WeightTarget::place(Lowering& low) const {
  if (direct_) return low.at(weights_);
  return low.scratch(static_cast<std::size_t>(weights_.elements()) * sizeof(float));
}

void WeightTarget::finish(Lowering& low, const Location& place) const {
  if (direct_) return;
  low.emit(std::make_unique<PutStep>(Order{weights_.dtype, weights_.dims, weights_.strides}, place,
                                     low.at(weights_)));
}

}  // namespace npu::convolution
