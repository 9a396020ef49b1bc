// The plans of one operator or function, found by the types, shapes and values of its inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/condition.h"
#include "tensorflow/plan.h"

namespace npu::tf {

// Types and shapes of all inputs, attributes where they matter, in one row of numbers.
using Key = std::vector<std::int64_t>;

// All plans for one key. Which inputs must have certain values is known from the plans.
class Signature {
 public:
  explicit Signature(Key key) : key_(std::move(key)) {}

  const Key& key() const { return key_; }

 private:
  friend class PlanCache;
  struct Variant {
    std::string values;  // of the specialised inputs
    std::shared_ptr<FunctionPlan> plan;
    std::uint64_t used = 0;
  };

  Key key_;
  std::vector<int> specialised_;
  std::vector<Variant> variants_;
  std::shared_ptr<FunctionPlan> general_;  // fits any value
  std::uint64_t used_ = 0;
  std::uint64_t calls_ = 0;
  std::unordered_map<std::string, std::uint64_t> value_calls_;  // by the values of the specialised inputs
  bool compiling_ = false;
  std::thread::id compiler_;
};

class PlanCache {
 public:
  // Appends the value of an input to a string.
  using ReadValue = std::function<void(int input, std::string& values)>;
  // Makes a plan; exceptions go to the caller of find(), and nothing is stored.
  using Compile = std::function<std::shared_ptr<FunctionPlan>(const std::shared_ptr<FunctionPlan>& previous)>;

  PlanCache(std::size_t most_signatures, std::size_t most_variants)
      : most_signatures_(most_signatures), most_variants_(most_variants) {}

  // The plan that fits; null when there is none yet and the key has been seen fewer than `threshold` times,
  // or when this very thread is making it. One thread makes a plan, others that want the same wait.
  std::shared_ptr<FunctionPlan> find(const Key& key, const ReadValue& read, const Compile& compile,
                                     std::uint64_t threshold);
  // Makes another plan in place of one that no longer fits.
  std::shared_ptr<FunctionPlan> replace(const Key& key, const ReadValue& read, const Compile& compile,
                                        const std::shared_ptr<FunctionPlan>& previous);
  void clear();
  std::size_t size();

 private:
  std::shared_ptr<Signature> signature(const Key& key);
  bool worth_compiling(Signature& signature, const ReadValue& read, std::uint64_t threshold) const;
  std::shared_ptr<FunctionPlan> match(Signature& signature, const ReadValue& read);
  void store(Signature& signature, const ReadValue& read, const std::shared_ptr<FunctionPlan>& plan);
  std::shared_ptr<FunctionPlan> make(std::unique_lock<std::mutex>& lock,
                                     const std::shared_ptr<Signature>& signature, const ReadValue& read,
                                     const Compile& compile, const std::shared_ptr<FunctionPlan>& previous);

  std::size_t most_signatures_;
  std::size_t most_variants_;
  std::mutex mutex_;
  Condition compiled_;
  std::unordered_multimap<std::uint64_t, std::shared_ptr<Signature>> signatures_;
  std::uint64_t clock_ = 0;
};

}  // namespace npu::tf
