// The choice of transforms, and that of the weights (done once, in double precision).
#include <bit>

#include "winograd/winograd.h"

namespace npu::winograd {
namespace {

float widen(float value) { return value; }
float widen(std::uint16_t value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }

}  // namespace

const Transforms* transforms() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return &kTransformsAvx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kTransformsAvx2;
  return nullptr;
}

template <class T>
void transform_weights(const Filter& f, const T* weights, float* planes) {
  static constexpr double kG[6][3] = {{1. / 4, 0, 0},
                                      {-1. / 6, -1. / 6, -1. / 6},
                                      {-1. / 6, 1. / 6, -1. / 6},
                                      {1. / 24, 1. / 12, 1. / 6},
                                      {1. / 24, -1. / 12, 1. / 6},
                                      {0, 0, 1}};
#pragma omp parallel for schedule(static)
  for (std::int64_t c = 0; c < f.channels; ++c) {
    for (std::int64_t o = 0; o < f.outputs; ++o) {
      const T* w = weights + f.first + o * f.output + c * f.channel;
      double half[6][3];
      for (int i = 0; i < 6; ++i) {
        for (int l = 0; l < 3; ++l) {
          half[i][l] = 0;
          for (int k = 0; k < 3; ++k) half[i][l] += kG[i][k] * widen(w[k * f.row + l * f.column]);
        }
      }
      for (int i = 0; i < 6; ++i) {
        for (int j = 0; j < 6; ++j) {
          double sum = 0;
          for (int l = 0; l < 3; ++l) sum += half[i][l] * kG[j][l];
          planes[((i * 6 + j) * f.channels + c) * f.outputs + o] = static_cast<float>(sum);
        }
      }
    }
  }
}

template void transform_weights(const Filter&, const float*, float*);
template void transform_weights(const Filter&, const std::uint16_t*, float*);

}  // namespace npu::winograd
