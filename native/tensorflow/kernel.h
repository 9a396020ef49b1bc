// The NpuGraph operator: a part of a host graph that runs on the NPU.
#pragma once

#include <cstdint>

namespace npu::tf {

// Registers the operator and its kernel for the host device; once a process.
void register_kernel();

// Parts are numbers in the graph; their plans are made when they first run.
std::int64_t new_part(int device);
void drop_part(std::int64_t part);

}  // namespace npu::tf
