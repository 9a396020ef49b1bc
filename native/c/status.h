// Exceptions become status codes at the C interfaces, with a message for each thread.
#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/errors.h"
#include "model/error.h"

namespace npu {

// A failure as the caller of a C interface sees it.
struct Failure {
  int code = 0;  // 0: none; 11003 is E11003
  std::string message;
};

// A failure whose code another interface has.
class CodedError : public std::runtime_error {
 public:
  CodedError(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }

 private:
  int code_;
};

// What the current exception is; to be called in a handler.
Failure current_failure() noexcept;

// The message of the calling thread's last failure.
std::string& last_message() noexcept;

// Runs a body; 0, or the code of what it raises.
template <class Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (...) {
    Failure failure = current_failure();
    last_message() = std::move(failure.message);
    return failure.code;
  }
}

inline void require(bool holds, const char* message) {
  if (!holds) throw ModelError(10020, message);
}

}  // namespace npu
