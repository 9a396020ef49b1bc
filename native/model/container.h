// The outer form of `.om` files: named, checksummed sections (ge/model/container.py writes them).
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace npu {

using Bytes = std::span<const std::byte>;

// A file in memory of our own, which what happens to the file later does not reach.
class FileImage {
 public:
  static std::shared_ptr<const FileImage> read(const std::string& path);
  static std::shared_ptr<const FileImage> copy(Bytes data);

  FileImage(std::size_t bytes);
  ~FileImage();
  FileImage(const FileImage&) = delete;
  FileImage& operator=(const FileImage&) = delete;

  Bytes bytes() const { return {data_, size_}; }

 private:
  std::byte* data_;
  std::size_t size_;
};

struct Contents {
  std::map<std::string, Bytes, std::less<>> sections;
  bool sealed = false;  // with the key of this user

  // Raises E11006 where there is none.
  Bytes section(std::string_view name) const;
};

// Checks form and checksums; `name` is the file's in errors.
Contents read_sections(Bytes data, const std::string& name);

}  // namespace npu
