// Selects the LSTM step kernels and packs their weights.
#include "core/processor.h"
#include "recurrent/lstm.h"
#include "recurrent/training.h"

namespace npu::recurrent {
namespace {

// Blocks of units; within one, `kDepth` values of k side by side for each unit.
template <class T, std::int64_t kDepth>
void pack(const T* weights, std::int64_t hidden, T* packed) {
  for (std::int64_t unit = 0; unit < hidden; unit += kUnits) {
    for (std::int64_t k = 0; k < hidden; k += kDepth) {
      for (std::int64_t g = 0; g < kGates; ++g) {
        for (std::int64_t u = 0; u < kUnits; ++u) {
          for (std::int64_t d = 0; d < kDepth; ++d) {
            *packed++ = weights[((k + d) * kGates + g) * hidden + unit + u];
          }
        }
      }
    }
  }
}

}  // namespace

LstmStepFn lstm_step(DType weights) {
  return for_machine(weights, [&]<Vectors kVectors>() { return lstm_step_for<kVectors>(weights); });
}

const TrainingKernels* training_kernels(DType weights) {
  return for_machine(weights, [&]<Vectors kVectors>() { return training_kernels_for<kVectors>(weights); });
}

void pack_lstm_weights(DType type, const void* weights, std::int64_t hidden, void* packed) {
  if (type == DType::Float32) {
    pack<float, 1>(static_cast<const float*>(weights), hidden, static_cast<float*>(packed));
  } else {
    pack<std::uint16_t, 2>(static_cast<const std::uint16_t*>(weights), hidden,
                           static_cast<std::uint16_t*>(packed));
  }
}

}  // namespace npu::recurrent
