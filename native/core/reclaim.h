// What compiles leave in the process, given back to the system.
#pragma once

namespace npu {

// Returns free memory of the heap, and drops the pages of code and constants of LLVM and oneDNN from the
// process: most of them are read by compiles alone, and those that are needed again come back from the
// system's cache.
void reclaim();

}  // namespace npu
