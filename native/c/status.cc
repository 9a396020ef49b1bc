#include "c/status.h"

namespace npu {

Failure current_failure() noexcept {
  const auto failure = [](int code, const std::string& cause, const char* remedy = "") {
    return Failure{code, ModelError(code, cause, remedy).what()};
  };
  try {
    throw;
  } catch (const CodedError& error) {
    return {error.code(), error.what()};
  } catch (const ModelError& error) {
    return {error.code(), error.what()};
  } catch (const OutOfDeviceMemory& error) {
    return failure(10030, error.what(), "a smaller batch, or a higher memory limit");
  } catch (const TaskError& error) {
    return failure(10032, error.what());
  } catch (const InvalidArgument& error) {
    return failure(10020, error.what());
  } catch (const Unsupported& error) {
    return failure(11008, error.what());
  } catch (const std::bad_alloc&) {
    return failure(10030, "the machine is out of memory");
  } catch (const std::exception& error) {
    return failure(10032, error.what());
  } catch (...) {
    return failure(10032, "an unknown failure");
  }
}

std::string& last_message() noexcept {
  thread_local std::string message;
  return message;
}

}  // namespace npu
