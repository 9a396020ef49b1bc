// Looks up and creates plans.
#include "tensorflow/cache.h"

#include <algorithm>

namespace npu::tf {
namespace {

std::uint64_t hash_of(const Key& key) {
  std::uint64_t hash = 0x9e3779b97f4a7c15ull;
  for (const std::int64_t word : key) {
    hash = (hash ^ static_cast<std::uint64_t>(word)) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return hash;
}

std::string values_of(const std::vector<int>& inputs, const PlanCache::ReadValue& read) {
  std::string values;
  for (const int input : inputs) read(input, values);
  return values;
}

}  // namespace

std::shared_ptr<Signature> PlanCache::signature(const Key& key) {
  const std::uint64_t hash = hash_of(key);
  const auto [begin, end] = signatures_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second->key_ == key) {
      it->second->used_ = ++clock_;
      return it->second;
    }
  }
  if (signatures_.size() >= most_signatures_) {
    const auto oldest =
        std::min_element(signatures_.begin(), signatures_.end(),
                         [](const auto& a, const auto& b) { return a.second->used_ < b.second->used_; });
    signatures_.erase(oldest);
  }
  auto made = std::make_shared<Signature>(key);
  made->used_ = ++clock_;
  signatures_.emplace(hash, made);
  return made;
}

std::shared_ptr<FunctionPlan> PlanCache::match(Signature& signature, const ReadValue& read) {
  if (signature.variants_.empty()) return signature.general_;
  if (signature.specialised_.empty()) return signature.variants_.front().plan;
  const std::string values = values_of(signature.specialised_, read);
  for (Signature::Variant& variant : signature.variants_) {
    if (variant.values == values) {
      variant.used = ++clock_;
      return variant.plan;
    }
  }
  return signature.general_;
}

void PlanCache::store(Signature& signature, const ReadValue& read,
                      const std::shared_ptr<FunctionPlan>& plan) {
  if (plan->specialised.empty() && !signature.specialised_.empty()) {
    signature.general_ = plan;
    return;
  }
  std::vector<int> all = signature.specialised_;
  for (const int input : plan->specialised) {
    if (std::find(all.begin(), all.end(), input) == all.end()) all.push_back(input);
  }
  std::sort(all.begin(), all.end());
  if (all != signature.specialised_) {
    signature.variants_.clear();  // they were told apart by fewer values
    signature.specialised_ = all;
  }
  const std::string values = values_of(all, read);
  for (Signature::Variant& variant : signature.variants_) {
    if (variant.values == values) {
      variant.plan = plan;
      return;
    }
  }
  if (signature.variants_.size() >= most_variants_) {
    signature.variants_.erase(std::min_element(signature.variants_.begin(), signature.variants_.end(),
                                               [](const auto& a, const auto& b) { return a.used < b.used; }));
  }
  signature.variants_.push_back({values, plan, ++clock_});
}

std::shared_ptr<FunctionPlan> PlanCache::make(std::unique_lock<std::mutex>& lock,
                                              const std::shared_ptr<Signature>& signature,
                                              const ReadValue& read, const Compile& compile,
                                              const std::shared_ptr<FunctionPlan>& previous) {
  signature->compiling_ = true;
  signature->compiler_ = std::this_thread::get_id();
  std::shared_ptr<FunctionPlan> plan;
  lock.unlock();
  try {
    plan = compile(previous);
  } catch (...) {
    lock.lock();
    signature->compiling_ = false;
    compiled_.notify_all();
    throw;
  }
  lock.lock();
  signature->compiling_ = false;
  if (plan) store(*signature, read, plan);
  compiled_.notify_all();
  return plan;
}

bool PlanCache::worth_compiling(Signature& signature, const ReadValue& read, std::uint64_t threshold) const {
  if (threshold == 0) return true;
  if (++signature.calls_ <= threshold) return false;
  if (signature.specialised_.empty()) return true;
  if (signature.variants_.size() >= most_variants_) return false;
  constexpr std::size_t kMostValues = 1024;
  if (signature.value_calls_.size() >= kMostValues) signature.value_calls_.clear();
  return ++signature.value_calls_[values_of(signature.specialised_, read)] > threshold;
}

std::shared_ptr<FunctionPlan> PlanCache::find(const Key& key, const ReadValue& read, const Compile& compile,
                                              std::uint64_t threshold) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Signature> found = signature(key);
  for (;;) {
    if (std::shared_ptr<FunctionPlan> plan = match(*found, read)) return plan;
    if (!found->compiling_) break;
    if (found->compiler_ == std::this_thread::get_id()) return nullptr;
    compiled_.wait(lock);
  }
  if (!worth_compiling(*found, read, threshold)) return nullptr;
  return make(lock, found, read, compile, nullptr);
}

std::shared_ptr<FunctionPlan> PlanCache::replace(const Key& key, const ReadValue& read,
                                                 const Compile& compile,
                                                 const std::shared_ptr<FunctionPlan>& previous) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Signature> found = signature(key);
  for (;;) {
    std::shared_ptr<FunctionPlan> plan = match(*found, read);
    if (plan && plan != previous) return plan;  // another thread was faster
    if (!found->compiling_) break;
    if (found->compiler_ == std::this_thread::get_id()) return nullptr;
    compiled_.wait(lock);
  }
  return make(lock, found, read, compile, previous);
}

void PlanCache::clear() {
  decltype(signatures_) dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(signatures_);
}

std::size_t PlanCache::size() {
  const std::lock_guard lock(mutex_);
  return signatures_.size();
}

}  // namespace npu::tf
