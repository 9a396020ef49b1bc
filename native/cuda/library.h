// NVIDIA's libraries, found at run time by paths that the caller gives.
#pragma once

#include <dlfcn.h>

#include <cstring>
#include <string>

#include "core/errors.h"

namespace npu::cuda {

class Library {
 public:
  // Raises Unsupported when the library cannot be loaded.
  explicit Library(const std::string& path)
      : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
    if (handle_ == nullptr)
      throw Unsupported(std::string("a library of NVIDIA cannot be loaded: ") + dlerror());
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <typename Function>
  void find(const char* name, Function& slot) const {
    void* symbol = dlsym(handle_, name);
    if (symbol == nullptr) throw Unsupported(path_ + " has no " + name);
    std::memcpy(&slot, &symbol, sizeof symbol);
  }

 private:
  std::string path_;
  void* handle_;  // stays loaded: its threads and its memory may outlive every user
};

}  // namespace npu::cuda
