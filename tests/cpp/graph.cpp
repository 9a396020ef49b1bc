// Builds a network by hand, compiles it in a process of the compiler and runs it here: graph result.raw
// net.air net.onnx
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <npu/operators.hpp>
#include <numeric>

namespace {

using tf_adapter::Dims;
using tf_adapter::Tensor;
using tf_adapter::Value;
namespace ops = tf_adapter::ops;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

Tensor ramp(const Dims& dims, float step) {
  Tensor tensor(NPU_FLOAT32, dims);
  float value = -1;
  for (float& element : tensor.values<float>()) element = value += step;
  return tensor;
}

void build(tf_adapter::Graph& graph) {
  const Value x = graph.input("x", {2, 3, 8, 8});
  const Value image = ops::conv(x, graph.constant(ramp({4, 3, 3, 3}, 0.01f)), graph.constant(ramp({4}, 0.5f)),
                                {}, {.strides = {2, 2}, .pads_begin = {1, 1}, .pads_end = {1, 1}});
  const Value means = ops::reduce_mean(ops::relu(image), {.axes = {2, 3}});
  const Value scores = ops::matmul(means, graph.constant(ramp({4, 6}, 0.05f))) * graph.constant(0.25f);
  const std::vector<Value> halves = ops::split(scores, 2, {.axis = 1, .sizes = {2, 4}});
  graph.output(ops::softmax(halves[1]), "y");
  const auto [values, places] = ops::top_k(halves[0], {.k = 1, .axis = 1});
  graph.output(-values, "least");
  graph.output(places, "places");
}

template <class Body>
npu_status status_of(Body body) {
  try {
    body();
  } catch (const tf_adapter::Error& error) {
    return error.status();
  }
  return NPU_OK;
}

template <class Body>
bool refused(Body body) {
  try {
    body();
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  expect(argc == 4, "there are three arguments");
  tf_adapter::Graph graph("net");
  build(graph);
  graph.write(argv[2]);
  tf_adapter::Model model = graph.compile();
  expect(model.inputs().size() == 1 && model.outputs().size() == 3, "the model has its inputs and outputs");
  std::vector<Tensor> inputs;
  inputs.push_back(ramp({2, 3, 8, 8}, 0.005f));
  const std::vector<Tensor> results = model(inputs);
  expect(results[0].dims() == Dims({2, 4}) && results[2].dtype() == NPU_INT64, "results have their shapes");
  std::ofstream(argv[1], std::ios::binary)
      .write(static_cast<const char*>(results[0].data()), static_cast<std::streamsize>(results[0].bytes()));

  tf_adapter::Model file = tf_adapter::compile(argv[3], {"--input_shape=x:2,3"});
  std::vector<Tensor> rows;
  rows.push_back(ramp({2, 3}, 0.5f));  // -0.5 0 0.5 1 1.5 2
  const std::vector<Tensor> positive = file(rows);
  expect(positive[0].values<float>()[0] == 0 && positive[0].values<float>()[5] == 2,
         "an ONNX file is compiled");

  tf_adapter::Graph wrong("wrong");
  wrong.output(wrong.add("NoSuchOperator", {wrong.input("x", {2})})[0], "y");
  expect(status_of([&] { wrong.compile(); }) == 10501, "an unknown operator is told by its code");
  expect(status_of([] { tf_adapter::compile("missing.onnx"); }) == 10021,
         "a missing file is told by its code");
  expect(refused([&] { graph.input("x", {2}); }), "a name is given once");
  expect(refused([&] { tf_adapter::Tensor(NPU_FLOAT32, {-1, 4}); }), "a negative dimension is refused");
  const std::int64_t huge = std::int64_t{1} << 40;
  expect(refused([&] { tf_adapter::Tensor(NPU_FLOAT32, {huge, huge}); }), "a size that wraps is refused");
  setenv("NPU_PYTHON", "/nonexistent/python", 1);
  expect(status_of([&] { graph.compile(); }) == NPU_NO_COMPILER, "a missing compiler is told");
  return 0;
}
