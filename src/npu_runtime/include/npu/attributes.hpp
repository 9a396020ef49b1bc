// What the functions of npu/operators.hpp are made with: attributes that may be absent, and adding an
// operator.
#ifndef NPU_ATTRIBUTES_HPP_
#define NPU_ATTRIBUTES_HPP_

#include <initializer_list>
#include <npu/graph.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tf_adapter::ops {

// A list that may be absent.
template <class T>
class OptionalList {
 public:
  OptionalList() = default;
  OptionalList(std::initializer_list<T> items) : items_(items) {}
  OptionalList(std::vector<T> items) : items_(std::move(items)) {}
  const std::optional<std::vector<T>>& get() const { return items_; }

 private:
  std::optional<std::vector<T>> items_;
};

namespace detail {

class Attributes {
 public:
  template <class T>
  Attributes& put(const char* name, const T& value) {
    list_.push_back({name, value});
    return *this;
  }
  template <class T>
  Attributes& put(const char* name, const std::optional<T>& value) {
    return value ? put(name, *value) : *this;
  }
  template <class T>
  Attributes& put(const char* name, const OptionalList<T>& value) {
    return put(name, value.get());
  }
  const std::vector<Attribute>& list() const { return list_; }

 private:
  std::vector<Attribute> list_;
};

inline std::vector<Value> joined(std::vector<Value> first, const std::vector<Value>& further) {
  first.insert(first.end(), further.begin(), further.end());
  return first;
}

// Adds an operator to the graph of its first input that is present.
inline std::vector<Value> add(const char* type, std::vector<Value> inputs, const Attributes& attributes = {},
                              std::size_t results = 1) {
  while (!inputs.empty() && !inputs.back()) inputs.pop_back();
  for (const Value& value : inputs) {
    if (value) return value.graph().add(type, inputs, attributes.list(), results);
  }
  throw std::invalid_argument(std::string(type) + " got no input that tells its graph");
}

}  // namespace detail

}  // namespace tf_adapter::ops

#endif  // NPU_ATTRIBUTES_HPP_
