// JSON as model files have it, read with checks: what is not as expected is a ModelError (E11006).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "model/error.h"

namespace npu {

// Content that makes no sense although its checksum is right.
ModelError malformed(const std::string& what, const std::string& cause);

class Json {
 public:
  using List = std::vector<Json>;
  using Record = std::vector<std::pair<std::string, Json>>;

  // `what` names the text in errors.
  static Json parse(std::span<const std::byte> text, const std::string& what);

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  const bool* boolean() const { return std::get_if<bool>(&value_); }
  const std::int64_t* whole() const { return std::get_if<std::int64_t>(&value_); }
  const double* real() const { return std::get_if<double>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const List* list() const { return std::get_if<List>(&value_); }
  const Record* record() const { return std::get_if<Record>(&value_); }

  // The member of a record; nullptr where there is none, or no record.
  const Json* find(std::string_view name) const;

  // Checked access; `what` names the value in errors.
  const Json& at(std::string_view name, const std::string& what) const;
  std::int64_t integer(const std::string& what, std::int64_t low = 0,
                       std::int64_t high = std::int64_t{1} << 46) const;
  const std::string& text(const std::string& what, std::size_t limit = std::size_t{1} << 20) const;
  const List& items(const std::string& what, std::size_t limit = std::size_t{1} << 24) const;
  const List& exactly(std::size_t count, const std::string& what) const;
  const Record& members(const std::string& what) const;

 private:
  friend class JsonReader;

  std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Record> value_;
};

}  // namespace npu
