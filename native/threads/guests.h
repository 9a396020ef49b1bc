// Lets a framework's OpenMP threads work for the pool.
//
// After its own operators a framework's threads spin for milliseconds on the cores that the pool's workers
// need. If such a thread runs the pool's shares itself, nothing competes, and it is already awake.
#pragma once

#include <functional>
#include <string>

namespace npu {

// Adopts the OpenMP runtime that a library in this process uses; false if it uses none that is supported.
bool take_guests_of(const std::string& library);

// Runs a function while the framework's threads serve the pool. It runs without them on threads other than
// the process's main thread, which have other OpenMP threads, and if their number differs from the pool's.
void run_with_guests(const std::function<void()>& function);

}  // namespace npu
