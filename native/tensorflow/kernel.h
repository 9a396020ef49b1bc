// The NpuGraph operator: a part of a host graph that runs on the NPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tensorflow/plan.h"

namespace npu::tf {

// Registers the operator and its kernel for the host device; once a process.
void register_kernel();

// Parts are numbers in the graph; their plans are made when they first run. `given` are inputs that another
// part left in the device's memory, all in the same, `left` results that this one leaves there: the tensors
// of these are shared arenas.
std::int64_t new_part(int device, std::vector<int> given, std::vector<int> left);
void drop_part(std::int64_t part);

// Operations that the calling thread makes from now on draw random numbers from these; without, each part has
// its own. TensorFlow makes the operations of a session on the thread that runs it, and keeps them as long as
// the session.
void enter_session(std::shared_ptr<Generators> generators);

}  // namespace npu::tf
