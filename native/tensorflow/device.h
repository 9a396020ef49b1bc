// The custom device: TensorFlow hands it operators, it runs them on the NPU or on the host kernels.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tensorflow/c_api.h"

namespace npu::tf {

struct DeviceOptions {
  int index = 0;
  std::string name;  // "/job:localhost/replica:0/task:0/device:NPU:0"
};

// The callbacks for TFE_RegisterCustomDevice and the device they take.
TFE_CustomDevice device_methods();
void* new_device(const DeviceOptions& options);

// An operator is compiled once a signature has been seen more often than this.
void set_eager_threshold(std::uint64_t calls);
void set_log_placement(bool on);
// Whether Python is asked at every call of an operator that the host would run.
void set_hard_placement(bool on);

// Drops the plans of a function or operator, or of all.
void forget_plans(const std::string& name);
void forget_all_plans();
// Random numbers begin again, as after tf.random.set_seed.
void reset_generators();

// How often operators and functions ran in which way since the last call.
struct Counts {
  std::uint64_t npu = 0;
  std::uint64_t host = 0;
};
std::map<std::string, Counts> take_counts();

// How often the steps of a stage ran their shares so far.
std::uint64_t shared_update_count();

}  // namespace npu::tf
