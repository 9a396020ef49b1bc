// Typed access to attributes.
#include "core/attrs.h"

#include <algorithm>

#include "core/errors.h"

namespace npu {
namespace {

[[noreturn]] void wrong_type(std::string_view name, std::string_view wanted) {
  throw InvalidArgument("attribute '" + std::string(name) + "' must be " + std::string(wanted));
}

bool is_empty_list(const AttrValue& value) {
  if (const auto* v = std::get_if<std::vector<std::int64_t>>(&value)) return v->empty();
  return false;
}

bool as_flag(const AttrValue& value, std::string_view name) {
  if (const auto* v = std::get_if<bool>(&value)) return *v;
  if (const auto* v = std::get_if<std::int64_t>(&value)) return *v != 0;
  wrong_type(name, "a bool");
}

std::int64_t as_integer(const AttrValue& value, std::string_view name) {
  if (const auto* v = std::get_if<std::int64_t>(&value)) return *v;
  if (const auto* v = std::get_if<bool>(&value)) return *v ? 1 : 0;
  wrong_type(name, "an integer");
}

double as_real(const AttrValue& value, std::string_view name) {
  if (const auto* v = std::get_if<double>(&value)) return *v;
  if (const auto* v = std::get_if<std::int64_t>(&value)) return static_cast<double>(*v);
  wrong_type(name, "a number");
}

const std::string& as_text(const AttrValue& value, std::string_view name) {
  if (const auto* v = std::get_if<std::string>(&value)) return *v;
  wrong_type(name, "a string");
}

const std::vector<std::int64_t>& as_integers(const AttrValue& value, std::string_view name) {
  if (const auto* v = std::get_if<std::vector<std::int64_t>>(&value)) return *v;
  wrong_type(name, "a list of integers");
}

}  // namespace

void Attrs::set(std::string name, AttrValue value) {
  auto at = std::lower_bound(values_.begin(), values_.end(), name,
                             [](const auto& entry, const std::string& key) { return entry.first < key; });
  if (at != values_.end() && at->first == name) {
    at->second = std::move(value);
  } else {
    values_.emplace(at, std::move(name), std::move(value));
  }
}

const AttrValue* Attrs::find(std::string_view name) const {
  auto at = std::lower_bound(values_.begin(), values_.end(), name,
                             [](const auto& entry, std::string_view key) { return entry.first < key; });
  return at != values_.end() && at->first == name ? &at->second : nullptr;
}

const AttrValue& Attrs::require(std::string_view name) const {
  if (const AttrValue* value = find(name)) return *value;
  throw InvalidArgument("attribute '" + std::string(name) + "' is missing");
}

bool Attrs::flag(std::string_view name, bool otherwise) const {
  const AttrValue* value = find(name);
  return value ? as_flag(*value, name) : otherwise;
}

std::int64_t Attrs::integer(std::string_view name) const { return as_integer(require(name), name); }

std::int64_t Attrs::integer(std::string_view name, std::int64_t otherwise) const {
  const AttrValue* value = find(name);
  return value ? as_integer(*value, name) : otherwise;
}

double Attrs::real(std::string_view name) const { return as_real(require(name), name); }

double Attrs::real(std::string_view name, double otherwise) const {
  const AttrValue* value = find(name);
  return value ? as_real(*value, name) : otherwise;
}

std::string Attrs::text(std::string_view name) const { return as_text(require(name), name); }

std::string Attrs::text(std::string_view name, std::string_view otherwise) const {
  const AttrValue* value = find(name);
  return value ? as_text(*value, name) : std::string(otherwise);
}

std::vector<std::int64_t> Attrs::integers(std::string_view name) const {
  return as_integers(require(name), name);
}

std::vector<std::int64_t> Attrs::integers(std::string_view name, std::vector<std::int64_t> otherwise) const {
  const AttrValue* value = find(name);
  return value ? as_integers(*value, name) : std::move(otherwise);
}

std::vector<double> Attrs::reals(std::string_view name) const {
  const AttrValue& value = require(name);
  if (const auto* v = std::get_if<std::vector<double>>(&value)) return *v;
  const auto& integers = as_integers(value, name);
  return {integers.begin(), integers.end()};
}

std::vector<std::string> Attrs::texts(std::string_view name) const {
  const AttrValue* value = find(name);
  if (!value || is_empty_list(*value)) return {};
  if (const auto* v = std::get_if<std::vector<std::string>>(value)) return *v;
  wrong_type(name, "a list of strings");
}

std::shared_ptr<KernelObject> Attrs::kernel(std::string_view name) const {
  const AttrValue& value = require(name);
  if (const auto* v = std::get_if<std::shared_ptr<KernelObject>>(&value)) return *v;
  wrong_type(name, "a kernel handle");
}

}  // namespace npu
