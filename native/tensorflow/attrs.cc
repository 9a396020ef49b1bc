// The few fields of NameAttrList, AttrValue and TensorShapeProto that the device reads.
#include "tensorflow/attrs.h"

#include <algorithm>

namespace npu::tf {
namespace {

// Fields of one encoded message, in order; ends at the first malformed byte.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  bool next() {
    std::uint64_t tag = 0;
    if (!varint(tag)) return false;
    number_ = static_cast<int>(tag >> 3);
    bytes_ = {};
    switch (tag & 7) {
      case 0:
        return varint(value_);
      case 1:
        return take(8);
      case 2: {
        std::uint64_t length = 0;
        return varint(length) && take(length);
      }
      case 5:
        return take(4);
      default:
        return false;
    }
  }

  int number() const { return number_; }
  std::uint64_t value() const { return value_; }
  std::string_view bytes() const { return bytes_; }

 private:
  bool varint(std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool take(std::uint64_t length) {
    if (length > rest_.size()) return false;
    bytes_ = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

  std::string_view rest_;
  int number_ = 0;
  std::uint64_t value_ = 0;
  std::string_view bytes_;
};

// Field numbers of the messages.
constexpr int kListAttr = 2;
constexpr int kEntryKey = 1;
constexpr int kEntryValue = 2;
constexpr int kValueString = 2;
constexpr int kValueType = 6;
constexpr int kValueShape = 7;
constexpr int kShapeDim = 2;
constexpr int kShapeUnknownRank = 3;
constexpr int kDimSize = 1;

std::optional<std::string_view> field(std::string_view message, int number) {
  for (Fields fields(message); fields.next();) {
    if (fields.number() == number) return fields.bytes();
  }
  return std::nullopt;
}

}  // namespace

std::string canonical_attrs(std::string_view serialized) {
  std::vector<std::string_view> entries;
  for (Fields fields(serialized); fields.next();) {
    if (fields.number() == kListAttr) entries.push_back(fields.bytes());
  }
  std::sort(entries.begin(), entries.end());
  std::string result;
  for (const std::string_view entry : entries) {
    result += static_cast<char>(entry.size() & 0xff);
    result += static_cast<char>(entry.size() >> 8 & 0xff);
    result += entry;
  }
  return result;
}

std::optional<std::string_view> find_attr(std::string_view serialized, std::string_view name) {
  for (Fields fields(serialized); fields.next();) {
    if (fields.number() == kListAttr && field(fields.bytes(), kEntryKey) == name) {
      return field(fields.bytes(), kEntryValue);
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> attr_type(std::string_view serialized, std::string_view name) {
  const auto value = find_attr(serialized, name);
  if (!value) return std::nullopt;
  for (Fields fields(*value); fields.next();) {
    if (fields.number() == kValueType) return static_cast<std::int64_t>(fields.value());
  }
  return std::nullopt;
}

std::optional<std::string_view> attr_string(std::string_view serialized, std::string_view name) {
  const auto value = find_attr(serialized, name);
  return value ? field(*value, kValueString) : std::nullopt;
}

bool attr_shape_known(std::string_view serialized, std::string_view name) {
  const auto value = find_attr(serialized, name);
  const auto shape = value ? field(*value, kValueShape) : std::nullopt;
  if (!shape) return false;
  for (Fields fields(*shape); fields.next();) {
    if (fields.number() == kShapeUnknownRank && fields.value() != 0) return false;
    if (fields.number() != kShapeDim) continue;
    for (Fields dim(fields.bytes()); dim.next();) {
      if (dim.number() == kDimSize && static_cast<std::int64_t>(dim.value()) < 0) return false;
    }
  }
  return true;
}

}  // namespace npu::tf
