// Task kind "reorder": copies, transposes and casts; oneDNN where it is quick and exact, our own loop
// otherwise.
#include "core/errors.h"
#include "onednn/engine.h"
#include "onednn/primitive.h"
#include "runtime/strided_step.h"

namespace npu {
namespace {

bool is_narrow_float(DType type) { return is_float(type) && type != DType::Float64; }

// oneDNN copies integers exactly but rounds and saturates when it casts to them; casts here truncate.
bool onednn_agrees(DType from, DType to) {
  if (is_narrow_float(from) && is_narrow_float(to)) return true;
  return from == to && (from == DType::Int8 || from == DType::UInt8 || from == DType::Int32);
}

// A oneDNN descriptor, or an empty one if its implementation would be slow.
dnnl::reorder::primitive_desc try_onednn(const Lowering& low, const View& from, const View& to) {
  if (!onednn_agrees(from.dtype, to.dtype) || from.dims.size() > 6 || from.dims.empty()) return {};
  for (std::size_t i = 0; i < from.dims.size(); ++i) {
    if (from.dims[i] > 1 && (from.strides[i] <= 0 || to.strides[i] <= 0)) return {};
  }
  dnnl::reorder::primitive_desc desc(onednn_engine(), describe(low, from), onednn_engine(), describe(low, to),
                                     base_attr(), true);
  if (!desc.get(true)) return {};
  const std::string impl = desc.impl_info_str();
  return impl.rfind("jit", 0) == 0 ? desc : dnnl::reorder::primitive_desc{};
}

}  // namespace

void lower_reorder(Lowering& low) {
  const View& from = low.input(0);
  const View& to = low.output(0);
  if (from.dims != to.dims) low.reject("source and output must have the same dims");
  const TeamScope team(team_of(low));
  const auto desc = from.elements() ? try_onednn(low, from, to) : dnnl::reorder::primitive_desc{};
  if (desc.get(true)) {
    low.describe(desc.impl_info_str(), layout_name(desc.src_desc()) + "," + layout_name(desc.dst_desc()), 0);
    emit_reorder(low, describe(low, from), low.at(from), describe(low, to), low.at(to));
    return;
  }
  low.describe("strided_copy", "", 0);
  low.emit(make_strided_copy(from, to, low.at(from), low.at(to)));
}

}  // namespace npu
