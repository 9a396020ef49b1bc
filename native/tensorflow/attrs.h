// Reading serialised attributes (a NameAttrList) without a protocol buffer library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace npu::tf {

// The entries of the attribute map, each as it stands, sorted: equal attributes give equal bytes.
std::string canonical_attrs(std::string_view serialized);

// The encoded value (AttrValue) of one attribute.
std::optional<std::string_view> find_attr(std::string_view serialized, std::string_view name);
std::optional<std::int64_t> attr_type(std::string_view serialized, std::string_view name);
std::optional<std::string_view> attr_string(std::string_view serialized, std::string_view name);
// Whether a shape attribute is known in every dimension.
bool attr_shape_known(std::string_view serialized, std::string_view name);

}  // namespace npu::tf
