// Finds TensorFlow's functions and maps element types.
#include "tensorflow/c_api.h"

#include <dlfcn.h>

#include "core/dtype.h"
#include "core/errors.h"

namespace npu::tf {

Api api;

namespace {

bool loaded = false;

struct TypeName {
  int number;
  const char* name;
};

constexpr TypeName kTypes[] = {
    {kFloat, "float32"}, {kDouble, "float64"}, {kHalf, "float16"},  {kBFloat16, "bfloat16"},
    {kInt8, "int8"},     {kInt16, "int16"},    {kInt32, "int32"},   {kInt64, "int64"},
    {kUInt8, "uint8"},   {kUInt16, "uint16"},  {kUInt32, "uint32"}, {kUInt64, "uint64"},
    {kBool, "bool"},
};

// Ref types are the plain type plus 100.
constexpr int kTypeNumbers = 32;

struct TypeTable {
  const char* names[kTypeNumbers] = {};
  std::size_t sizes[kTypeNumbers] = {};
  TypeTable() {
    for (const TypeName& type : kTypes) {
      names[type.number] = type.name;
      sizes[type.number] = dtype_size(parse_dtype(type.name));
    }
  }
};

const TypeTable& table() {
  static const TypeTable types;
  return types;
}

}  // namespace

void load_api(const std::vector<std::string>& libraries) {
  std::vector<void*> handles;
  for (const std::string& library : libraries) {
    if (void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD)) handles.push_back(handle);
  }
  std::string missing;
  const auto find = [&](const char* name) {
    for (void* handle : handles) {
      if (void* address = dlsym(handle, name)) return address;
    }
    missing += missing.empty() ? name : std::string(", ") + name;
    return static_cast<void*>(nullptr);
  };
#define NPU_TENSORFLOW_FIND(name, result, arguments) \
  api.name = reinterpret_cast<decltype(api.name)>(find(#name));
  NPU_TENSORFLOW_FUNCTIONS(NPU_TENSORFLOW_FIND)
#undef NPU_TENSORFLOW_FIND
  if (!missing.empty()) {
    throw InvalidArgument("this TensorFlow does not export " + missing +
                          "; install tensorflow-cpu 2.15 or a later 2.x release");
  }
  loaded = true;
}

bool api_loaded() { return loaded; }

const char* type_name(int dtype) {
  const char* name = dtype >= 0 && dtype < kTypeNumbers ? table().names[dtype] : nullptr;
  return name ? name : "";
}

std::size_t type_size(int dtype) { return dtype >= 0 && dtype < kTypeNumbers ? table().sizes[dtype] : 0; }

int type_number(const std::string& name) {
  for (const TypeName& type : kTypes) {
    if (name == type.name) return type.number;
  }
  throw InvalidArgument("TensorFlow has no element type '" + name + "'");
}

}  // namespace npu::tf
