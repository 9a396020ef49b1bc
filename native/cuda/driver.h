// The functions of the CUDA driver that the runtime uses, found at run time: nothing of CUDA is needed to
// build.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

namespace npu::cuda {

using Result = int;
using Ordinal = int;
using Address = unsigned long long;
// Handles of the driver; each kind is an incomplete type of its own.
using ContextHandle = struct ContextTag*;
using StreamHandle = struct StreamTag*;
using EventHandle = struct EventTag*;
using ModuleHandle = struct ModuleTag*;
using FunctionHandle = struct FunctionTag*;
using GraphHandle = struct GraphTag*;
using GraphExecHandle = struct GraphExecTag*;

constexpr Result kOutOfMemory = 2;
constexpr Result kNoDevice = 100;
constexpr Result kNotReady = 600;
constexpr int kMultiprocessorCount = 16;
constexpr int kCacheBytes = 38;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

// One entry for each function; the table names the symbols (driver.cc).
struct Driver {
  Result (*init)(unsigned flags);
  Result (*driver_version)(int* version);
  Result (*error_name)(Result error, const char** name);
  Result (*error_text)(Result error, const char** text);
  Result (*device_count)(int* count);
  Result (*device_get)(Ordinal* device, int index);
  Result (*device_name)(char* name, int length, Ordinal device);
  Result (*device_attribute)(int* value, int attribute, Ordinal device);
  Result (*device_memory)(std::size_t* bytes, Ordinal device);
  Result (*context_retain)(ContextHandle* context, Ordinal device);
  Result (*context_set)(ContextHandle context);
  Result (*context_synchronize)();
  Result (*memory_info)(std::size_t* free, std::size_t* total);
  Result (*allocate)(Address* address, std::size_t bytes);
  Result (*release)(Address address);
  Result (*allocate_host)(void** address, std::size_t bytes);
  Result (*release_host)(void* address);
  Result (*copy_to_device)(Address to, const void* from, std::size_t bytes, StreamHandle stream);
  Result (*copy_to_host)(void* to, Address from, std::size_t bytes, StreamHandle stream);
  Result (*copy_on_device)(Address to, Address from, std::size_t bytes, StreamHandle stream);
  Result (*copy_anywhere)(Address to, Address from, std::size_t bytes, StreamHandle stream);
  Result (*fill)(Address to, unsigned char byte, std::size_t bytes, StreamHandle stream);
  Result (*stream_create)(StreamHandle* stream, unsigned flags);
  Result (*stream_destroy)(StreamHandle stream);
  Result (*stream_synchronize)(StreamHandle stream);
  Result (*stream_query)(StreamHandle stream);
  Result (*stream_wait)(StreamHandle stream, EventHandle event, unsigned flags);
  Result (*capture_begin)(StreamHandle stream, int mode);
  Result (*capture_end)(StreamHandle stream, GraphHandle* graph);
  Result (*event_create)(EventHandle* event, unsigned flags);
  Result (*event_destroy)(EventHandle event);
  Result (*event_record)(EventHandle event, StreamHandle stream);
  Result (*event_synchronize)(EventHandle event);
  Result (*event_query)(EventHandle event);
  Result (*event_elapsed)(float* milliseconds, EventHandle begin, EventHandle end);
  Result (*module_load)(ModuleHandle* module, const void* image, unsigned count, int* options, void** values);
  Result (*module_unload)(ModuleHandle module);
  Result (*module_function)(FunctionHandle* function, ModuleHandle module, const char* name);
  Result (*function_attribute)(FunctionHandle function, int attribute, int value);
  Result (*launch)(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   StreamHandle stream, void** parameters, void** extra);
  Result (*graph_instantiate)(GraphExecHandle* exec, GraphHandle graph, unsigned long long flags);
  Result (*graph_destroy)(GraphHandle graph);
  Result (*graph_nodes)(GraphHandle graph, void* nodes, std::size_t* count);
  Result (*graph_launch)(GraphExecHandle exec, StreamHandle stream);
  Result (*graph_exec_destroy)(GraphExecHandle exec);
};

// No driver, or no GPU, in this machine.
class Unavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A driver or library call failed.
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The driver of this machine, initialised; raises Unavailable with the reason. With NPU_CUDA_DRIVER=simulated
// it is the simulation below.
const Driver& driver();

bool is_simulated();

// Devices of host memory that run kernels compiled for the host (tbe.cuda.build(simulated=True)): tests need
// no GPU.
const Driver& simulated_driver();

// Raises CudaError for a failed call.
void check(Result result, const char* what);

}  // namespace npu::cuda
