#include "runtime/observer.h"

#include <mutex>
#include <utility>

namespace npu {
namespace {

struct Store {
  std::mutex mutex;
  std::shared_ptr<const Observer::Function> function;
};

Store& store() {
  static auto* made = new Store;  // threads of frameworks may outlive static objects
  return *made;
}

}  // namespace

std::atomic<bool> Observer::on_{false};

void Observer::set(Function function) {
  std::shared_ptr<const Function> made;
  if (function) made = std::make_shared<const Function>(std::move(function));
  {
    const std::lock_guard lock(store().mutex);
    store().function.swap(made);
    on_.store(store().function != nullptr, std::memory_order_relaxed);
  }
}

std::shared_ptr<const Observer::Function> Observer::get() {
  const std::lock_guard lock(store().mutex);
  return store().function;
}

}  // namespace npu
