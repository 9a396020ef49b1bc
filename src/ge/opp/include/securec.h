// Bounded copies, under the names that kernels of operator projects use.
#pragma once

#include <cstddef>
#include <cstring>

using errno_t = int;
constexpr errno_t EOK = 0;

inline errno_t memcpy_s(void* target, std::size_t room, const void* source, std::size_t count) {
  if (count > room || (count && (!target || !source))) return 34;  // ERANGE
  if (count) std::memcpy(target, source, count);
  return EOK;
}

inline errno_t memset_s(void* target, std::size_t room, int value, std::size_t count) {
  if (count > room || (count && !target)) return 34;
  if (count) std::memset(target, value, count);
  return EOK;
}
