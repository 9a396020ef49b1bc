// LSTM steps in training: forward ones keep what the gradient needs, those back make the gradients of gates.
//
// Weights are packed in panels of 16 columns, row by row, once for all steps: those of a forward step are the
// recurrent weights (4 * hidden, hidden) turned, those of a step back are these themselves. A thread owns
// whole units in both: threads meet once a step. All pointers are of one step; `void` ones are of the
// weights' type.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/processor.h"

namespace npu::recurrent {

inline constexpr std::int64_t kKept =
    5;  // values of a unit: the gates after their activations, the cell before

struct ForwardStep {
  std::int64_t batch, hidden;
  const void* weights;  // packed
  const float* gates;   // (batch, 4, hidden): what the input and the biases add
  const void* before;   // (batch, hidden): the state before
  float* c;             // (batch, hidden), updated
  float* h;             // (batch, hidden): the state after
  void* y;              // the same
  void* kept;           // (batch, 5, hidden)
};

struct BackStep {
  std::int64_t batch, hidden;
  const void* weights;  // packed
  const void* after;    // (batch, 4, hidden): gradients of the next step's gates; without one, dh is given
  const void* dy;       // (batch, hidden) or nullptr
  const void* kept;     // (batch, 5, hidden), or nullptr where there is no further step: dh is the result
  float* dh;            // (batch, hidden): the gradient of the state
  float* dc;            // (batch, hidden), updated
  void* gates;          // (batch, 4, hidden): the result
};

// All work on blocks [first, last) of 16 units, steps from the last one down when `backwards`.
struct TrainingKernels {
  void (*forward)(const ForwardStep& step, std::int64_t first, std::int64_t last, bool backwards);
  void (*back)(const BackStep& step, std::int64_t first, std::int64_t last, bool backwards);
  void (*pack_forward)(const void* weights, std::int64_t hidden, void* packed, std::int64_t first,
                       std::int64_t last);
  void (*pack_back)(const void* weights, std::int64_t hidden, void* packed, std::int64_t first,
                    std::int64_t last);
};

// The kernels for weights of a type, or nullptr when this machine has none.
const TrainingKernels* training_kernels(DType weights);
template <Vectors>
const TrainingKernels* training_kernels_for(DType weights);

}  // namespace npu::recurrent
