// Reads model files; the counterpart of ge/model/container.py and ge/model/keys.py.
#include "model/container.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "model/error.h"
#include "model/json.h"
#include "model/sha256.h"

namespace npu {
namespace {

constexpr std::string_view kMagic = "\x89GEOM\r\n\x1a";
constexpr std::uint32_t kVersion = 2;
constexpr std::size_t kHeaderBytes = 128, kSignedBytes = 64, kSealBytes = 32, kEntryBytes = 64;
constexpr std::size_t kMaxSections = 64, kKeyBytes = 32;
constexpr std::string_view kPurpose("tf-adapter .om seal 1\0", 22);
constexpr const char* kRecompile = "compile the original model with atc";
constexpr const char* kCopyAgain = "copy it again, or compile the original model with atc";

// Magic numbers of other formats, to name them in errors.
constexpr std::pair<std::string_view, const char*> kForeign[] = {
    {"IMOD", "an offline model for Ascend hardware"},
    {"PK\x03\x04", "a zip archive"},
    {"\x7f"
     "ELF",
     "an executable or a library"},
    {"\x1f\x8b", "a gzip archive"},
    {"\x89HDF", "an HDF5 file"},
    {"\x08", "perhaps an ONNX model"},
    {"\x0a", "perhaps a TensorFlow graph"},
    {"{", "a JSON text"}};

class Handle {
 public:
  explicit Handle(int number) : number_(number) {}
  ~Handle() {
    if (number_ >= 0) close(number_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

ModelError unreadable(const std::string& path, const char* why) {
  return {11001, path + " cannot be read: " + why, "check the path and its permissions"};
}

ModelError truncated(const std::string& name, std::size_t size, std::size_t expected = 0) {
  const std::string of = expected ? " of " + std::to_string(expected) : "";
  return {11003, name + " is truncated: " + std::to_string(size) + " bytes" + of, kCopyAgain};
}

ModelError corrupted(const std::string& name, const std::string& cause) {
  return {11004, name + " is corrupted: " + cause, kCopyAgain};
}

std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

template <class Number>
Number number_at(Bytes data, std::size_t place) {
  Number value;
  std::memcpy(&value, data.data() + place, sizeof value);
  return value;
}

const char* foreign_kind(std::string_view head) {
  for (const auto& [magic, kind] : kForeign) {
    if (head.starts_with(magic)) return kind;
  }
  return "something else";
}

// Validates the header of a file of `size` bytes; returns the number of sections.
std::size_t check_header(Bytes header, std::size_t size, const std::string& name) {
  if (size == 0) throw ModelError(11003, name + " is empty", kRecompile);
  const std::string_view text = as_text(header);
  if (!text.starts_with(kMagic.substr(0, std::min(size, kMagic.size())))) {
    throw ModelError(11002, name + " is not an .om file of this engine but " + foreign_kind(text),
                     kRecompile);
  }
  if (header.size() < kMagic.size() + 4) throw truncated(name, size);
  const auto version = number_at<std::uint32_t>(header, 8);
  if (version > kVersion) {
    throw ModelError(11005,
                     name + " has format version " + std::to_string(version) + ", this engine reads up to " +
                         std::to_string(kVersion),
                     "update this package, or compile the model again with this version");
  }
  if (header.size() < kHeaderBytes) throw truncated(name, size);
  const auto expected = number_at<std::uint64_t>(header, 16);
  const std::size_t count = number_at<std::uint32_t>(header, 24);
  if (version < 1 || number_at<std::uint32_t>(header, 12) != kHeaderBytes ||
      number_at<std::uint32_t>(header, 28) != kEntryBytes || count > kMaxSections) {
    throw corrupted(name, "its header is malformed");
  }
  if (size < expected) throw truncated(name, size, expected);
  if (size > expected || expected < kHeaderBytes + count * kEntryBytes) {
    throw corrupted(
        name, "it has " + std::to_string(size) + " bytes where its header says " + std::to_string(expected));
  }
  return count;
}

std::string key_path() {
  const auto variable = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text ? text : "");
  };
  if (const std::string given = variable("NPU_KEY_FILE"); !given.empty()) return given;
  const std::string config = variable("XDG_CONFIG_HOME");
  return (config.empty() ? variable("HOME") + "/.config" : config) + "/tf_adapter/om.key";
}

// The user's key; none if it is missing or accessible to others.
std::optional<std::array<std::byte, kKeyBytes>> read_key() {
  const Handle file(open(key_path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0) return {};
  if (!S_ISREG(status.st_mode) || (status.st_mode & 077) || status.st_uid != geteuid()) return {};
  std::array<std::byte, kKeyBytes> key;
  if (status.st_size != kKeyBytes || read(file.get(), key.data(), kKeyBytes) != ssize_t{kKeyBytes}) return {};
  return key;
}

bool is_sealed(Bytes data) {
  const auto key = read_key();
  return key && equal_digests(hmac_sha256(*key, kPurpose, data.first(kSignedBytes)),
                              data.subspan(kSignedBytes, kSealBytes));
}

}  // namespace

FileImage::FileImage(std::size_t bytes) : data_(nullptr), size_(bytes) {
  if (!bytes) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(memory);
}

FileImage::~FileImage() {
  if (data_) munmap(data_, size_);
}

std::shared_ptr<const FileImage> FileImage::copy(Bytes data) {
  auto image = std::make_shared<FileImage>(data.size());
  if (!data.empty()) std::memcpy(image->data_, data.data(), data.size());
  return image;
}

std::shared_ptr<const FileImage> FileImage::read(const std::string& path) {
  const Handle file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // do not block on a pipe without a writer
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0) throw unreadable(path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw unreadable(path, "not a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  std::array<std::byte, kHeaderBytes> head;
  const ssize_t first = pread(file.get(), head.data(), head.size(), 0);
  if (first < 0) throw unreadable(path, std::strerror(errno));
  check_header(Bytes(head).first(static_cast<std::size_t>(first)), size, path);  // before allocating
  auto image = std::make_shared<FileImage>(size);
  for (std::size_t end = 0; end < size;) {
    const ssize_t count = pread(file.get(), image->data_ + end, size - end, static_cast<off_t>(end));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw unreadable(path, std::strerror(errno));
    if (count == 0) throw truncated(path, end, size);
    end += static_cast<std::size_t>(count);
  }
  return image;
}

Bytes Contents::section(std::string_view name) const {
  const auto found = sections.find(name);
  if (found == sections.end()) throw malformed("the file", "has no section '" + std::string(name) + "'");
  return found->second;
}

Contents read_sections(Bytes data, const std::string& name) {
  const Bytes header = data.first(std::min(data.size(), kHeaderBytes));
  const std::size_t count = check_header(header, data.size(), name);
  const Bytes table = data.subspan(kHeaderBytes, count * kEntryBytes);
  if (!equal_digests(sha256(table), header.subspan(32, 32))) {
    throw corrupted(name, "its section table does not match its checksum");
  }
  Contents contents;
  std::size_t end = kHeaderBytes + table.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Bytes entry = table.subspan(i * kEntryBytes, kEntryBytes);
    std::string label(as_text(entry.first(16)));
    label.resize(label.find_last_not_of('\0') + 1);
    const auto offset = number_at<std::uint64_t>(entry, 16), size = number_at<std::uint64_t>(entry, 24);
    if (contents.sections.contains(label) || offset < end || offset > data.size() ||
        size > data.size() - offset) {
      throw corrupted(name, "section '" + label + "' is out of place");
    }
    end = offset + size;
    const Bytes content = data.subspan(offset, size);
    if (!equal_digests(sha256(content), entry.subspan(32, 32))) {
      throw corrupted(name, "section '" + label + "' does not match its checksum");
    }
    contents.sections.emplace(std::move(label), content);
  }
  contents.sealed = is_sealed(data);
  return contents;
}

}  // namespace npu
