// Threads of a framework's OpenMP at work for the pool.
//
// After its own operators a framework's threads spin for milliseconds, on the cores that the pool's workers
// need. While such a thread does the pool's shares itself, nothing competes, and it is awake already.
#pragma once

#include <functional>
#include <string>

namespace npu {

// Takes the OpenMP that a library in this process calls; false where it calls none that is known.
bool take_guests_of(const std::string& library);

// Runs a function while the framework's threads serve the pool. On other threads than the process's first
// one, whose OpenMP threads are others, and where their number differs from the pool's, it runs without them.
void run_with_guests(const std::function<void()>& function);

}  // namespace npu
