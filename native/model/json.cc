// A JSON parser for the output of Python's json module, including NaN and infinities.
#include "model/json.h"

#include <charconv>
#include <limits>

namespace npu {

ModelError malformed(const std::string& what, const std::string& cause) {
  return {11006, "malformed model: " + what + " " + cause, "compile the original model with atc"};
}

class JsonReader {
 public:
  JsonReader(std::string_view text, const std::string& what) : text_(text), what_(what) {}

  Json read() {
    Json value = read_value(0);
    skip_space();
    if (at_ != text_.size()) fail();
    return value;
  }

 private:
  static constexpr int kDepth = 64;

  [[noreturn]] void fail() const { throw malformed(what_, "is not valid JSON"); }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }

  char peek() {
    skip_space();
    if (at_ >= text_.size()) fail();
    return text_[at_];
  }

  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  void expect(char sign) {
    if (peek() != sign) fail();
    ++at_;
  }

  Json read_value(int depth) {
    if (depth > kDepth) fail();
    Json value;
    switch (peek()) {
      case '{':
        value.value_ = read_record(depth);
        break;
      case '[':
        value.value_ = read_list(depth);
        break;
      case '"':
        value.value_ = read_string();
        break;
      default:
        if (!read_word(value)) read_number(value);
    }
    return value;
  }

  bool read_word(Json& value) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (take("null")) return true;
    if (take("true")) return value.value_ = true, true;
    if (take("false")) return value.value_ = false, true;
    if (take("NaN")) return value.value_ = std::numeric_limits<double>::quiet_NaN(), true;
    if (take("Infinity")) return value.value_ = kInfinity, true;
    if (take("-Infinity")) return value.value_ = -kInfinity, true;
    return false;
  }

  void read_number(Json& value) {
    const std::size_t end = std::min(text_.find_first_not_of("+-.0123456789eE", at_), text_.size());
    const char *first = text_.data() + at_, *last = text_.data() + end;
    const bool whole = text_.substr(at_, end - at_).find_first_of(".eE") == std::string_view::npos;
    at_ = end;
    std::int64_t integer = 0;
    double real = 0;
    const auto read = whole ? std::from_chars(first, last, integer) : std::from_chars(first, last, real);
    if (first == last || read.ptr != last || read.ec != std::errc()) fail();
    if (whole) {
      value.value_ = integer;
    } else {
      value.value_ = real;
    }
  }

  Json::List read_list(int depth) {
    Json::List list;
    expect('[');
    if (peek() == ']') return ++at_, list;
    for (;;) {
      list.push_back(read_value(depth + 1));
      if (peek() == ']') return ++at_, list;
      expect(',');
    }
  }

  Json::Record read_record(int depth) {
    Json::Record record;
    expect('{');
    if (peek() == '}') return ++at_, record;
    for (;;) {
      if (peek() != '"') fail();
      std::string name = read_string();
      expect(':');
      record.emplace_back(std::move(name), read_value(depth + 1));
      if (peek() == '}') return ++at_, record;
      expect(',');
    }
  }

  std::string read_string() {
    std::string result;
    ++at_;
    for (;;) {
      const std::size_t end = text_.find_first_of("\"\\", at_);
      if (end == std::string_view::npos) fail();
      result.append(text_.substr(at_, end - at_));
      at_ = end + 1;
      if (text_[end] == '"') return result;
      read_escape(result);
    }
  }

  void read_escape(std::string& result) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kSigns = "\"\\/\b\f\n\r\t";
    if (at_ >= text_.size()) fail();
    const char sign = text_[at_++];
    if (sign != 'u') {
      const std::size_t place = kNames.find(sign);
      if (place == std::string_view::npos) fail();
      result.push_back(kSigns[place]);
      return;
    }
    std::uint32_t point = read_hex();
    if (point >= 0xd800 && point < 0xdc00 && take("\\u")) {
      const std::uint32_t low = read_hex();
      if (low < 0xdc00 || low > 0xdfff) fail();
      point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(result, point);
  }

  std::uint32_t read_hex() {
    if (at_ + 4 > text_.size()) fail();
    std::uint32_t value = 0;
    const char* first = text_.data() + at_;
    if (std::from_chars(first, first + 4, value, 16).ptr != first + 4) fail();
    at_ += 4;
    return value;
  }

  static void append_utf8(std::string& to, std::uint32_t point) {
    const auto put = [&](std::uint32_t byte) { to.push_back(static_cast<char>(byte)); };
    if (point < 0x80) return put(point);
    if (point < 0x800) {
      put(0xc0 | (point >> 6));
    } else if (point < 0x10000) {
      put(0xe0 | (point >> 12));
      put(0x80 | ((point >> 6) & 0x3f));
    } else {
      put(0xf0 | (point >> 18));
      put(0x80 | ((point >> 12) & 0x3f));
      put(0x80 | ((point >> 6) & 0x3f));
    }
    put(0x80 | (point & 0x3f));
  }

  std::string_view text_;
  const std::string& what_;
  std::size_t at_ = 0;
};

Json Json::parse(std::span<const std::byte> text, const std::string& what) {
  return JsonReader({reinterpret_cast<const char*>(text.data()), text.size()}, what).read();
}

const Json* Json::find(std::string_view name) const {
  if (!record()) return nullptr;
  for (const auto& [key, value] : *record()) {
    if (key == name) return &value;
  }
  return nullptr;
}

const Json& Json::at(std::string_view name, const std::string& what) const {
  const Json* found = find(name);
  if (!found) throw malformed(what, "must be an object with " + std::string(name));
  return *found;
}

std::int64_t Json::integer(const std::string& what, std::int64_t low, std::int64_t high) const {
  const std::int64_t* value = whole();
  if (!value || *value < low || *value > high) {
    throw malformed(what, "must be an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return *value;
}

const std::string& Json::text(const std::string& what, std::size_t limit) const {
  if (!string() || string()->size() > limit) {
    throw malformed(what, "must be a string of at most " + std::to_string(limit) + " characters");
  }
  return *string();
}

const Json::List& Json::items(const std::string& what, std::size_t limit) const {
  if (!list() || list()->size() > limit) {
    throw malformed(what, "must be a list of at most " + std::to_string(limit) + " items");
  }
  return *list();
}

const Json::List& Json::exactly(std::size_t count, const std::string& what) const {
  if (!list() || list()->size() != count) {
    throw malformed(what, "must be a list of " + std::to_string(count) + " items");
  }
  return *list();
}

const Json::Record& Json::members(const std::string& what) const {
  if (!record()) throw malformed(what, "must be an object");
  return *record();
}

}  // namespace npu
