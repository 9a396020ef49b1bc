// The step of one of our own kernels: parameters fixed when the program is built, addresses bound for each
// context.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/step.h"

namespace npu {

// `Bound` is constructed from the parameters; each location's address is stored in the member named with it.
template <class Bound, class Params>
class KernelStep : public Step {
 public:
  using Places = std::vector<std::pair<void* Bound::*, Location>>;

  KernelStep(Params params, Places places) : params_(std::move(params)), places_(std::move(places)) {}

  std::unique_ptr<BoundStep> bind(Binder& binder) const override {
    auto bound = std::make_unique<Bound>(params_);
    for (const auto& [member, place] : places_) binder.address(&(bound.get()->*member), place);
    return bound;
  }

 private:
  Params params_;
  Places places_;
};

}  // namespace npu
