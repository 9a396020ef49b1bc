// Graphs built by hand in C++, compiled in a process of the compiler and loaded into this one. C++20, header
// only; npu/operators.hpp has a function for each operator of the library.
//
//     tf_adapter::Graph graph("net");
//     tf_adapter::Value x = graph.input("x", {8, 128});
//     tf_adapter::Value y = tf_adapter::ops::relu(tf_adapter::ops::matmul(x, graph.constant(weights)));
//     graph.output(y, "y");
//     tf_adapter::Model model = graph.compile();
#ifndef NPU_GRAPH_HPP_
#define NPU_GRAPH_HPP_

#include <stdlib.h>

#include <array>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <npu/npu.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

namespace tf_adapter {

class Graph;

// A tensor of a graph. One that is made without a graph stands for an absent input.
class Value {
 public:
  Value() = default;
  explicit operator bool() const { return graph_ != nullptr; }
  Graph& graph() const {
    if (!graph_) throw std::invalid_argument("a value that is absent belongs to no graph");
    return *graph_;
  }
  const std::string& name() const { return name_; }

 private:
  friend class Graph;
  Value(Graph* graph, std::string name) : graph_(graph), name_(std::move(name)) {}

  Graph* graph_ = nullptr;
  std::string name_;
};

// An attribute of an operator.
using AttributeValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                                    std::vector<double>, std::vector<std::string>>;

struct Attribute {
  std::string name;
  AttributeValue value;
};

namespace detail {

// Writes the messages of ONNX's protocol buffers, of which `.air` files are made.
class Message {
 public:
  void number(int field, std::uint64_t value) {
    key(field, 0);
    varint(value);
  }
  void real(int field, float value) {
    key(field, 5);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (int i = 0; i < 4; ++i) text_.push_back(static_cast<char>(bits >> (8 * i)));
  }
  void bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    text_.append(value);
  }
  void message(int field, const Message& value) { bytes(field, value.text_); }
  const std::string& text() const { return text_; }

 private:
  void key(int field, unsigned kind) { varint(static_cast<unsigned>(field) << 3 | kind); }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_.push_back(static_cast<char>(value | 0x80));
    text_.push_back(static_cast<char>(value));
  }

  std::string text_;
};

// ONNX's numbers of the element types, in the order of npu_dtype.
inline std::uint64_t onnx_type(npu_dtype dtype) {
  constexpr std::array<std::uint64_t, 13> kTypes{1, 11, 10, 16, 3, 5, 6, 7, 2, 4, 12, 13, 9};
  return kTypes.at(static_cast<std::size_t>(dtype));
}

inline Message port(const std::string& name, npu_dtype dtype, const Dims& dims) {
  Message shape, tensor, type, result;
  for (const std::int64_t dim : dims) {
    Message one;
    one.number(1, static_cast<std::uint64_t>(dim));
    shape.message(1, one);
  }
  tensor.number(1, onnx_type(dtype));
  tensor.message(2, shape);
  type.message(1, tensor);
  result.bytes(1, name);
  result.message(2, type);
  return result;
}

inline Message attribute(const Attribute& given) {
  Message result;
  result.bytes(1, given.name);
  const auto write = [&](std::uint64_t type, int field, const auto& put, const auto& values) {
    for (const auto& value : values) put(field, value);
    result.number(20, type);
  };
  const auto integer = [&](int field, std::int64_t value) {
    result.number(field, static_cast<std::uint64_t>(value));
  };
  const auto real = [&](int field, double value) { result.real(field, static_cast<float>(value)); };
  const auto text = [&](int field, const std::string& value) { result.bytes(field, value); };
  std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::int64_t>) {
          write(2, 3, integer, std::initializer_list<std::int64_t>{value});
        } else if constexpr (std::is_same_v<T, double>) {
          write(1, 2, real, std::initializer_list<double>{value});
        } else if constexpr (std::is_same_v<T, std::string>) {
          write(3, 4, text, std::initializer_list<std::string>{value});
        } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
          write(7, 8, integer, value);
        } else if constexpr (std::is_same_v<T, std::vector<double>>) {
          write(6, 7, real, value);
        } else {
          write(8, 9, text, value);
        }
      },
      given.value);
  return result;
}

// A folder that is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tf_adapter-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::system_error(errno, std::generic_category(), name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace detail

// Compiles a model file (ONNX, TensorFlow, AIR) and loads the result; further options are those of atc.
inline Model compile(const std::string& model, const std::vector<std::string>& options = {}) {
  const detail::TemporaryFolder folder;
  const std::string om = (folder.path() / "model.om").string();
  compile_file(model, om, options);
  return Model(om);
}

// A network in the making. Types and shapes are checked when it is compiled.
class Graph {
 public:
  explicit Graph(std::string name = "graph") : name_(std::move(name)) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Value input(const std::string& name, const Dims& dims, npu_dtype dtype = NPU_FLOAT32) {
    take(name);
    body_.message(11, detail::port(name, dtype, dims));
    return {this, name};
  }

  Value constant(const Tensor& tensor) {
    detail::Message data;
    for (const std::int64_t dim : tensor.dims()) data.number(1, static_cast<std::uint64_t>(dim));
    data.number(2, detail::onnx_type(tensor.dtype()));
    const std::string name = fresh("constant");
    data.bytes(8, name);
    data.bytes(9, {static_cast<const char*>(tensor.data()), tensor.bytes()});
    body_.message(5, data);
    return {this, name};
  }
  // A number.
  template <class T>
    requires std::is_arithmetic_v<T>
  Value constant(T number) {
    return constant(Tensor(Dims{}, std::span<const T>(&number, 1)));
  }

  void output(const Value& value, const std::string& name) {
    take(name);
    const Value named = add("Identity", {value}, {}, 1, name)[0];
    detail::Message port;
    port.bytes(1, named.name());
    body_.message(12, port);
  }

  // Adds an operator of the library, or one of the user's; `results` is the number of its outputs.
  std::vector<Value> add(const std::string& type, const std::vector<Value>& inputs,
                         const std::vector<Attribute>& attributes = {}, std::size_t results = 1,
                         const std::string& result_name = "") {
    detail::Message node;
    for (const Value& value : inputs) {
      if (value && value.graph_ != this) throw std::invalid_argument("a value belongs to another graph");
      node.bytes(1, value.name());
    }
    const std::string name = fresh(type);
    std::vector<Value> made;
    for (std::size_t i = 0; i < results; ++i) {
      made.push_back({this, !result_name.empty() ? result_name : name + ":" + std::to_string(i)});
      node.bytes(2, made.back().name());
    }
    node.bytes(3, name);
    node.bytes(4, type);
    for (const Attribute& attribute : attributes) node.message(5, detail::attribute(attribute));
    node.bytes(7, "ge");
    body_.message(1, node);
    return made;
  }

  // Writes the graph as an `.air` file, which atc compiles and Netron shows.
  void write(const std::string& path) const {
    detail::Message opset, graph, model;
    opset.bytes(1, "ge");
    opset.number(2, 1);
    graph.bytes(2, name_);
    model.number(1, 10);
    model.bytes(2, "tf_adapter");
    model.bytes(7, graph.text() + body_.text());
    model.message(8, opset);
    std::ofstream file(path, std::ios::binary);
    file.write(model.text().data(), static_cast<std::streamsize>(model.text().size()));
    if (!file.flush()) throw std::system_error(errno, std::generic_category(), path);
  }

  // Compiles to an `.om` file; further options are those of atc.
  void compile_file(const std::string& om, std::vector<std::string> options = {}) const {
    const detail::TemporaryFolder folder;
    const std::string air = (folder.path() / (name_ + ".air")).string();
    write(air);
    options.push_back("--framework=1");
    tf_adapter::compile_file(air, om, options);
  }
  // Compiles and loads.
  Model compile(const std::vector<std::string>& options = {}) const {
    const detail::TemporaryFolder folder;
    const std::string om = (folder.path() / "model.om").string();
    compile_file(om, options);
    return Model(om);
  }

 private:
  std::string fresh(const std::string& stem) { return stem + "_" + std::to_string(count_++); }
  // Inputs and outputs share one set of names.
  void take(const std::string& name) {
    if (!names_.insert(name).second) {
      throw std::invalid_argument("graph " + name_ + " already has an input or output '" + name + "'");
    }
  }

  std::string name_;
  detail::Message body_;
  std::set<std::string> names_;
  std::size_t count_ = 0;
};

}  // namespace tf_adapter

#endif  // NPU_GRAPH_HPP_
