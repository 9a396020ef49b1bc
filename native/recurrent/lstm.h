// LSTM steps for small batches, where reading the recurrent weights is what takes the time.
//
// The weights are packed by blocks of 16 units with the four gates side by side, so that a thread owns whole
// units: one barrier a step. Every other step walks the blocks backwards, which finds the last ones still in
// the cache. bfloat16 weights are half as much to read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/processor.h"

namespace npu::recurrent {

inline constexpr std::int64_t kUnits = 16;    // of a block
inline constexpr std::int64_t kGates = 4;     // input, forget, cell, output
inline constexpr std::int64_t kMaxBatch = 4;  // beyond it, matrix products do better

struct LstmStep {
  std::int64_t batch, hidden;
  const float* projected;    // (batch, 4, hidden): what the input and the bias add
  const void* weights;       // packed
  const float* h;            // (batch, hidden)
  const std::uint16_t* h16;  // the same in bfloat16, for weights of it
  float* c;                  // (batch, hidden), updated
  float* h_next;
  std::uint16_t* h16_next;
};

// Computes the units of blocks [first, last), from the last one down when `backwards`.
using LstmStepFn = void (*)(const LstmStep& step, std::int64_t first, std::int64_t last, bool backwards);

// The step for weights of a type, or nullptr when this machine has none.
LstmStepFn lstm_step(DType weights);
template <Vectors>
LstmStepFn lstm_step_for(DType weights);

// Packs recurrent weights (hidden, 4, hidden), row-major; the result has their size.
void pack_lstm_weights(DType type, const void* weights, std::int64_t hidden, void* packed);

}  // namespace npu::recurrent
