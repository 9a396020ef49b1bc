// Where the gradient of a convolution's weights is summed up: in float32 with the channels of one side next
// to each other. That is its own memory where it is so; otherwise memory of the task, from which a last
// step puts it in order and rounds it.
#pragma once

#include "runtime/lowering.h"

namespace npu::convolution {

class WeightTarget {
 public:
  // Weights (O, I, h, w).
  explicit WeightTarget(const View& weights);

  // Whether the weights are of a type that the last step can write.
  bool fits() const;
  // Distances in elements where sums are formed, for each axis of the weights.
  const Dims& strides() const { return strides_; }
  // The memory where sums are formed.
  Location place(Lowering& low) const;
  // The last step, if there is one: `place` is what place() gave.
  void finish(Lowering& low, const Location& place) const;

 private:
  View weights_;
  bool direct_;
  Dims strides_;
};

}  // namespace npu::convolution
