// What the tests of the C++ layer run, in a process without Python: program model.om result.raw
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <npu/npu.hpp>
#include <string>
#include <thread>

namespace {

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

template <class Body>
npu_status status_of(Body body) {
  try {
    body();
  } catch (const tf_adapter::Error& error) {
    expect(std::strstr(error.what(), std::to_string(error.status()).c_str()), "an error's text has its code");
    return error.status();
  }
  return NPU_OK;
}

std::vector<tf_adapter::Tensor> ramp(const tf_adapter::Model& model) {
  std::vector<tf_adapter::Tensor> inputs;
  for (const tf_adapter::TensorInfo& info : model.inputs()) {
    inputs.emplace_back(info);
    float value = 0;
    for (float& element : inputs.back().values<float>()) element = value += 0.125f;
  }
  return inputs;
}

bool equal(const tf_adapter::Tensor& a, const tf_adapter::Tensor& b) {
  return a.dims() == b.dims() && !std::memcmp(a.data(), b.data(), a.bytes());
}

void run_in_threads(tf_adapter::Model& model, const std::vector<tf_adapter::Tensor>& inputs,
                    const tf_adapter::Tensor& right) {
  bool good[2] = {};
  const auto work = [&](bool& result) {
    result = true;
    for (int i = 0; i < 20; ++i) result = result && equal(model(inputs)[0], right);
  };
  std::thread first(work, std::ref(good[0])), second(work, std::ref(good[1]));
  first.join();
  second.join();
  expect(good[0] && good[1], "threads get the same results");
}

void run_in_stream(tf_adapter::Model& model, const std::vector<tf_adapter::Tensor>& inputs,
                   const tf_adapter::Tensor& right) {
  tf_adapter::Stream stream;
  tf_adapter::Tensor result(model.outputs()[0]);
  npu_array feed{const_cast<void*>(inputs[0].data()), inputs[0].bytes(), {}, 0};
  npu_array wanted{result.data(), result.bytes(), {}, 0};
  model.run_async({&feed, 1}, {&wanted, 1}, stream);
  stream.synchronize();
  expect(equal(result, right), "a stream gives the same result");
  npu_array small{result.data(), 1, {}, 0};
  model.run_async({&feed, 1}, {&small, 1}, stream);
  expect(status_of([&] { stream.synchronize(); }) == NPU_INVALID_ARGUMENT, "a stream tells a failure");
  stream.synchronize();
}

void misuse(tf_adapter::Model& model, std::vector<tf_adapter::Tensor>& inputs) {
  expect(status_of([] { tf_adapter::Model("missing.om"); }) == NPU_FILE_UNREADABLE, "a missing file is told");
  expect(status_of([] { tf_adapter::Model(std::span<const std::byte>()); }) == NPU_FILE_TRUNCATED,
         "an empty file is told");
  expect(status_of([&] { model({}); }) == NPU_INVALID_ARGUMENT, "missing inputs are told");
  std::vector<tf_adapter::Tensor> other;
  other.emplace_back(NPU_INT32, inputs[0].dims());
  expect(status_of([&] { model(other); }) == NPU_INVALID_ARGUMENT, "inputs of another type are told");
  expect(tf_adapter::Buffer(100).bytes().size() == 100, "a buffer has its size");
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 100, SIZE_MAX / 2}) {
    expect(status_of([&] { tf_adapter::Buffer{bytes}; }) == NPU_OUT_OF_MEMORY, "no device has such a buffer");
  }
}

}  // namespace

int main(int argc, char** argv) {
  expect(argc == 3, "there are two arguments");
  tf_adapter::Model model(argv[1]);
  std::vector<tf_adapter::Tensor> inputs = ramp(model);
  const std::vector<tf_adapter::Tensor> results = model(inputs);
  std::ofstream(argv[2], std::ios::binary)
      .write(static_cast<const char*>(results[0].data()), static_cast<std::streamsize>(results[0].bytes()));
  run_in_threads(model, inputs, results[0]);
  run_in_stream(model, inputs, results[0]);
  misuse(model, inputs);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    expect(line.find("libpython") == std::string::npos && line.find("_native.") == std::string::npos,
           "there is no Python in the process");
  }
  return 0;
}
