// Runs a compiled model without Python and prints the largest scores:
//
//     classify resnet50.om [image.raw]
//
// image.raw holds the first input as the model takes it (float32, contiguous); without it the input is a
// gradient.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <npu/npu.hpp>
#include <numeric>

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

void fill(std::span<float> image, const char* path) {
  if (!path) {
    for (std::size_t i = 0; i < image.size(); ++i) image[i] = static_cast<float>(i % 256) / 255.0f;
    return;
  }
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(image.data()), static_cast<std::streamsize>(image.size_bytes()));
  if (!file) throw std::runtime_error(std::string(path) + " is missing or too short");
}

void print_largest(std::span<const float> scores, std::size_t count) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  for (std::size_t i = 0; i < count; ++i)
    std::printf("class %4zu  %.9g\n", order[i], static_cast<double>(scores[order[i]]));
}

int classify(const char* path, const char* image_path) {
  Clock::time_point start = Clock::now();
  tf_adapter::Model model(path);
  std::printf("loaded in %.1f ms\n", milliseconds(start));
  std::vector<tf_adapter::Tensor> inputs;
  for (const tf_adapter::TensorInfo& info : model.inputs()) inputs.emplace_back(info);
  fill(inputs.at(0).values<float>(), image_path);
  start = Clock::now();
  const std::vector<tf_adapter::Tensor> results = model(inputs);
  std::printf("first result after %.1f ms\n", milliseconds(start));
  print_largest(results.at(0).values<float>(), 5);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: classify model.om [image.raw]\n");
    return 2;
  }
  try {
    return classify(argv[1], argc == 3 ? argv[2] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
