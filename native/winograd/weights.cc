// Selects transforms and transforms weights (once, in double precision).
#include <algorithm>
#include <bit>

#include "core/processor.h"
#include "winograd/winograd.h"

namespace npu::winograd {
namespace {

float widen(float value) { return value; }
float widen(std::uint16_t value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }

// What a kernel of three becomes at a point: its polynomial's value over the product of the point's distances
// from the others.
struct Row {
  double at, scale;
  double of(const double taps[3]) const { return (taps[0] + at * taps[1] + at * at * taps[2]) * scale; }
};

constexpr double kNear2 = kNear * kNear, kFar2 = kFar * kFar;
constexpr Row kRows[5] = {{0, 1 / (kNear2 * kFar2)},
                          {kNear, 1 / (2 * kNear2 * (kNear2 - kFar2))},
                          {-kNear, 1 / (2 * kNear2 * (kNear2 - kFar2))},
                          {kFar, 1 / (2 * kFar2 * (kFar2 - kNear2))},
                          {-kFar, 1 / (2 * kFar2 * (kFar2 - kNear2))}};

void transform_line(const double taps[3], double out[6]) {
  for (int i = 0; i < 5; ++i) out[i] = kRows[i].of(taps);
  out[5] = taps[2];
}

}  // namespace

const Transforms* transforms() {
  if (has(Vectors::Avx512)) return &kTransformsAvx512;
  if (has(Vectors::Avx2)) return &kTransformsAvx2;
  return nullptr;
}

template <class T>
void transform_weights(const Filter& f, const T* weights, float* panels) {
#pragma omp parallel for schedule(static)
  for (std::int64_t c = 0; c < f.channels; ++c) {
    for (std::int64_t o = 0; o < f.outputs; ++o) {
      const T* w = weights + f.first + o * f.output + c * f.channel;
      double half[3][6];
      for (int l = 0; l < 3; ++l) {
        const double column[3] = {widen(w[l * f.column]), widen(w[f.row + l * f.column]),
                                  widen(w[2 * f.row + l * f.column])};
        transform_line(column, half[l]);
      }
      const std::int64_t panel = o / kPanel * kPanel, width = std::min(kPanel, f.outputs - panel);
      float* to = panels + panel / kPanel * filter_panel(f.channels) + c * width + o - panel;
      for (int i = 0; i < 6; ++i) {
        const double row[3] = {half[0][i], half[1][i], half[2][i]};
        double line[6];
        transform_line(row, line);
        for (int j = 0; j < 6; ++j)
          to[(i * 6 + j) * filter_plane(f.channels, width)] = static_cast<float>(line[j]);
      }
    }
  }
}

template void transform_weights(const Filter&, const float*, float*);
template void transform_weights(const Filter&, const std::uint16_t*, float*);

}  // namespace npu::winograd
