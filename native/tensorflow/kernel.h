// The NpuGraph operator: a part of a host graph that runs on the NPU.
#pragma once

#include <cstdint>
#include <vector>

namespace npu::tf {

// Registers the operator and its kernel for the host device; once a process.
void register_kernel();

// Parts are numbers in the graph; their plans are made when they first run. `given` are inputs that another
// part left in the device's memory, all in the same, `left` results that this one leaves there: the tensors
// of these are handovers.
std::int64_t new_part(int device, std::vector<int> given, std::vector<int> left);
void drop_part(std::int64_t part);

}  // namespace npu::tf
