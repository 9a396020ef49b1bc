// Loader of generated kernels: x86-64 ELF relocatable objects, mapped without any compiler library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace npu {

using KernelFn = void (*)(void** args, std::int64_t lo, std::int64_t hi);

// Code of one kernel, executable but not writable once loaded. Unmapped when its last user releases it.
class KernelObject {
 public:
  // Raises ObjectError for anything that is not a complete, well-formed object defining `symbol`.
  static std::shared_ptr<KernelObject> load(std::span<const std::byte> bytes, const std::string& symbol);

  ~KernelObject();
  KernelObject(const KernelObject&) = delete;
  KernelObject& operator=(const KernelObject&) = delete;

  KernelFn entry() const { return entry_; }
  const std::string& symbol() const { return symbol_; }
  std::size_t mapped_bytes() const { return size_; }

 private:
  KernelObject(void* base, std::size_t size) : base_(base), size_(size) {}

  void* base_;
  std::size_t size_;
  KernelFn entry_ = nullptr;
  std::string symbol_;

  friend class ObjectLoader;
};

}  // namespace npu
