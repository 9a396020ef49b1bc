// The search for NaN and infinities, whose sum is NaN, in the output of a kernel that does not raise the
// processor's flag for them.
#include <atomic>
#include <cstdint>

#include "core/parallel.h"
#include "runtime/kernel_step.h"
#include "runtime/lowering.h"

namespace npu {
namespace {

constexpr double kCycles = 4;  // of a number

struct Params {
  DType type;
  std::int64_t elements;
  bool dense;
};

// `kInfinity` is an infinity without its sign.
template <class Bits, Bits kInfinity>
bool has_special(const void* data, std::int64_t first, std::int64_t last) {
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  const auto* bits = static_cast<const Bits*>(data);
  bool found = false;
  for (std::int64_t i = first; i < last; ++i) found |= (bits[i] & kMagnitude) >= kInfinity;
  return found;
}

class BoundNanSearch : public BoundStep {
 public:
  explicit BoundNanSearch(const Params& params) : params_(params) {}

  void run(RunState& state) override {
    if (!params_.dense) {
      state.suspect = true;
      return;
    }
    std::atomic<bool> found = false;
    parallel_for(params_.elements, grain(kCycles), [&](std::int64_t first, std::int64_t last) {
      if (search(first, last)) found.store(true, std::memory_order_relaxed);
    });
    state.suspect = state.suspect || found.load(std::memory_order_relaxed);
  }

  void* data = nullptr;

 private:
  bool search(std::int64_t first, std::int64_t last) const {
    switch (params_.type) {
      case DType::Float32:
        return has_special<std::uint32_t, 0x7f800000>(data, first, last);
      case DType::BFloat16:
        return has_special<std::uint16_t, 0x7f80>(data, first, last);
      case DType::Float16:
        return has_special<std::uint16_t, 0x7c00>(data, first, last);
      default:
        return false;  // integers
    }
  }

  const Params& params_;
};

}  // namespace

void emit_nan_search(Lowering& low) {
  const View& y = low.output(0);
  std::int64_t reach = 1;
  for (std::size_t i = 0; i < y.dims.size(); ++i) reach += (y.dims[i] - 1) * y.strides[i];
  const Params params{y.dtype, y.elements(), reach == y.elements()};
  using Search = KernelStep<BoundNanSearch, Params>;
  low.emit(std::make_unique<Search>(params, Search::Places{{&BoundNanSearch::data, low.at(y)}}));
}

}  // namespace npu
