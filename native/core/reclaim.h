// Memory that compiles take beside their results: what they leave is given back, what they do not read stays
// away.
#pragma once

namespace npu {

// Returns free memory of the heap, and drops the pages of code and constants of LLVM and oneDNN from the
// process: most of them are read by compiles alone, and those that are needed again come back from the
// system's cache.
void reclaim();

// Lets those pages come one by one, as they are read. By itself the system maps sixteen for each, of which a
// compile reads five. For the life of the process, and the libraries loaded so far; false where the system
// does not let it.
bool map_single_pages();

}  // namespace npu
