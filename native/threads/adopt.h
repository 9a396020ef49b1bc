// Has oneDNN, a library built apart, run its parallel regions on this library's pool.
#pragma once

#include <string>

namespace npu {

// Done once, when the extension is loaded. Where oneDNN was built with an OpenMP of which it calls more than
// this library has, it keeps its own threads.
void adopt_onednn();

// "npu", or the OpenMP function that oneDNN needs beyond those of this library.
const std::string& onednn_threads();

// Where oneDNN keeps its own threads: sets how many.
inline void (*other_set_num_threads)(int) = nullptr;

}  // namespace npu
