// What the functions of acl/acl.h share: codes, contexts, streams, and which handles are alive.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "acl/acl.h"
#include "c/status.h"
#include "c/stream.h"

namespace npu::acl {

// A failure with a return code of AscendCL.
class AclError : public CodedError {
 public:
  using CodedError::CodedError;
};

inline void require(bool holds, const std::string& message, int code = ACL_ERROR_INVALID_PARAM) {
  if (!holds) throw AclError(code, message);
}

// The return code of an engine's code, as acl/_conventions.py has it.
int code_of(int engine_code);

// Stores a failure's text for the calling thread; returns its code.
aclError report(const char* function, const Failure& failure) noexcept;
// The same for the exception that is being handled.
aclError report_current(const char* function) noexcept;

// Runs the body of a function that returns a code.
template <class Body>
aclError guard(const char* function, Body&& body) noexcept {
  try {
    body();
    return ACL_SUCCESS;
  } catch (...) {
    return report_current(function);
  }
}

// Runs the body of a function that returns a value; `otherwise` where it fails.
template <class Value, class Body>
Value guard_value(const char* function, Value otherwise, Body&& body) noexcept {
  guard(function, [&] { otherwise = body(); });
  return otherwise;
}

// The live objects of one kind, which callers know by their addresses.
template <class Item>
class Live {
 public:
  Live(const char* kind, int code) : kind_(kind), code_(code) {}

  Item* add(std::shared_ptr<Item> item) {
    const std::lock_guard lock(mutex_);
    return items_.insert(std::move(item)).first->get();
  }
  Item& get(const void* address) {
    const std::lock_guard lock(mutex_);
    return *find(address)->get();
  }
  std::shared_ptr<Item> remove(const void* address) {
    const std::lock_guard lock(mutex_);
    return std::move(items_.extract(find(address)).value());
  }
  void clear() {
    Items old;
    {
      const std::lock_guard lock(mutex_);
      old.swap(items_);
    }
  }
  // All of them; those that are removed meanwhile live until the list does.
  std::vector<std::shared_ptr<Item>> all() {
    const std::lock_guard lock(mutex_);
    return {items_.begin(), items_.end()};
  }

 private:
  struct ByAddress {
    using is_transparent = void;
    static const void* address(const std::shared_ptr<Item>& item) { return item.get(); }
    static const void* address(const void* pointer) { return pointer; }
    bool operator()(const auto& a, const auto& b) const {
      return std::less<const void*>()(address(a), address(b));
    }
  };
  using Items = std::set<std::shared_ptr<Item>, ByAddress>;

  typename Items::iterator find(const void* address) {
    const auto found = items_.find(address);
    if (found == items_.end()) throw AclError(code_, std::string("this is not a live ") + kind_);
    return found;
  }

  const char* kind_;
  int code_;
  std::mutex mutex_;
  Items items_;
};

// A place on a device with a default stream.
struct Context {
  explicit Context(int number) : device(number) {}
  int device;
  Stream stream;
};

// The calling thread's context.
Context& current_context();
// The stream of a handle; null is the default stream of the thread's context.
Stream& stream_of(aclrtStream handle);
// What aclFinalize() lets go.
void clear_models();

}  // namespace npu::acl
