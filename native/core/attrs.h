// Attributes of a task: a small, sorted list of named values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace npu {

class KernelObject;

using AttrValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string>, std::shared_ptr<KernelObject>>;

// Getters raise InvalidArgument if a value has another type; those without a default also if it is missing.
// An integer is accepted as a float, and an empty integer list as an empty list of another type.
class Attrs {
 public:
  void set(std::string name, AttrValue value);

  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  bool flag(std::string_view name, bool otherwise = false) const;
  std::int64_t integer(std::string_view name) const;
  std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
  double real(std::string_view name) const;
  double real(std::string_view name, double otherwise) const;
  std::string text(std::string_view name) const;
  std::string text(std::string_view name, std::string_view otherwise) const;
  std::vector<std::int64_t> integers(std::string_view name) const;
  std::vector<std::int64_t> integers(std::string_view name, std::vector<std::int64_t> otherwise) const;
  std::vector<double> reals(std::string_view name) const;
  std::vector<std::string> texts(std::string_view name) const;  // empty if missing
  std::shared_ptr<KernelObject> kernel(std::string_view name) const;

 private:
  const AttrValue* find(std::string_view name) const;
  const AttrValue& require(std::string_view name) const;

  std::vector<std::pair<std::string, AttrValue>> values_;
};

}  // namespace npu
