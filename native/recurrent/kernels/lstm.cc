// LSTM steps for small batches.
#include "recurrent/lstm.h"

#include "recurrent/kernels/activations.h"

namespace npu::recurrent {
namespace {

// The state of a step in the weights' type; products read it in words.
template <class T>
const typename T::Value* state_of(const LstmStep& s) {
  if constexpr (T::kInWord == 1) {
    return s.h;
  } else {
    return s.h16;
  }
}

template <class T>
void finish_unit(const LstmStep& s, std::int64_t n, std::int64_t unit, const Vector gates[4]) {
  const std::int64_t at = n * s.hidden + unit;
  const Vector kept = sigmoid(gates[1]) * load(s.c + at);
  const Vector c = fma(sigmoid(gates[0]), tangent(gates[2]), kept);
  const Vector h = sigmoid(gates[3]) * tangent(c);
  store(s.c + at, c);
  store(s.h_next + at, h);
  if constexpr (T::kInWord == 2) T::store(s.h16_next + at, kAllLanes, h);
}

template <class T, int kBatch>
void block(const LstmStep& s, std::int64_t index) {
  // Number of gates whose sums fit in registers.
  constexpr int kTogether = kBatch * kGates < kRegisters ? kGates : kBatch < 3 ? 2 : 1;
  const std::int64_t unit = index * kUnits, row = kGates * kUnits;
  const float* weights = static_cast<const float*>(s.weights) + index * s.hidden * row / T::kInWord;
  const typename T::Value* const h = state_of<T>(s);
  Vector sum[kBatch][kGates];
  for (int first = 0; first < kGates; first += kTogether) {
    Vector some[kBatch][kTogether];
    for (int n = 0; n < kBatch; ++n) {
      for (int g = 0; g < kTogether; ++g) {
        some[n][g] = load(s.projected + (n * kGates + first + g) * s.hidden + unit);
      }
    }
    const float* w = weights + first * kUnits;
    for (std::int64_t k = 0; k < s.hidden; k += T::kInWord, w += row) {
      for (int g = 0; g < kTogether; ++g) {
        const Vector gate = load(w + g * kUnits);
        for (int n = 0; n < kBatch; ++n) {
          some[n][g] = T::multiply(T::splat_word(h + n * s.hidden + k), gate, some[n][g]);
        }
      }
    }
    for (int n = 0; n < kBatch; ++n) {
      for (int g = 0; g < kTogether; ++g) sum[n][first + g] = some[n][g];
    }
  }
  for (int n = 0; n < kBatch; ++n) finish_unit<T>(s, n, unit, sum[n]);
}

template <class T, int kBatch>
void blocks(const LstmStep& s, std::int64_t first, std::int64_t last, bool backwards) {
  for (std::int64_t i = first; i < last; ++i) block<T, kBatch>(s, backwards ? first + last - 1 - i : i);
}

template <class T>
void step(const LstmStep& s, std::int64_t first, std::int64_t last, bool backwards) {
  static constexpr LstmStepFn kByBatch[] = {blocks<T, 1>, blocks<T, 2>, blocks<T, 3>, blocks<T, 4>};
  kByBatch[s.batch - 1](s, first, last, backwards);
}

}  // namespace

template <Vectors>
LstmStepFn lstm_step_for(DType weights) {
  return for_type(weights, []<class T>() -> LstmStepFn { return step<T>; });
}
template LstmStepFn lstm_step_for<kVectors>(DType);

}  // namespace npu::recurrent
