#include "core/errors.h"

namespace npu {

OutOfDeviceMemory::OutOfDeviceMemory(std::string name, std::size_t requested, std::size_t available)
    : std::runtime_error("out of device memory: " + name + " asks for " + std::to_string(requested) +
                         " bytes, " + std::to_string(available) +
                         " are available under the device's limit; reduce the batch size or raise the limit "
                         "(set_memory_limit)"),
      name_(std::move(name)),
      requested_(requested),
      available_(available) {}

}  // namespace npu
