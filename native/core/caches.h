// The caches of this processor, which decide how large the blocks of our own kernels are.
#pragma once

#include <cstdint>

namespace npu {

// Sizes in bytes: the data cache of a core, its second level, the last level of all cores.
struct Caches {
  std::int64_t first = 32 << 10, second = 1 << 20, last = 32 << 20;
};

// As the system tells; the defaults where it does not. Levels that do not exist have the size of the last.
const Caches& caches();

}  // namespace npu
