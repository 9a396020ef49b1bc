// The exceptions of the runtime; the Python module translates each into its own exception type.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

namespace npu {

// An invalid argument of the caller (ValueError in Python).
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// No implementation supports a task.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A task failed while running. The kind is "index" or "division" if the data is at fault, else empty.
class TaskError : public std::runtime_error {
 public:
  TaskError(std::string task, std::string cause, std::string kind = "")
      : std::runtime_error("task '" + task + "': " + cause),
        task_(std::move(task)),
        cause_(std::move(cause)),
        kind_(std::move(kind)) {}

  const std::string& task() const { return task_; }
  const std::string& cause() const { return cause_; }
  const std::string& kind() const { return kind_; }

 private:
  std::string task_, cause_, kind_;
};

// Kernel object bytes that cannot be loaded.
class ObjectError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The device's memory limit would be exceeded.
class OutOfDeviceMemory : public std::runtime_error {
 public:
  OutOfDeviceMemory(std::string name, std::size_t requested, std::size_t available);

  const std::string& name() const { return name_; }
  std::size_t requested() const { return requested_; }
  std::size_t available() const { return available_; }

 private:
  std::string name_;
  std::size_t requested_;
  std::size_t available_;
};

}  // namespace npu
