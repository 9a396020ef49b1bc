// What all oneDNN task kinds share: descriptors from views, packing, internal reorders, post-ops.
#pragma once

#include <cstdint>
#include <functional>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "runtime/lowering.h"

namespace npu {

using Desc = dnnl::memory::desc;

// Raise Unsupported when oneDNN has no such element type or cannot describe the strides.
dnnl::memory::data_type onednn_type(const Lowering& low, DType type);
Desc describe(const Lowering& low, const View& view);
Desc describe(const Lowering& low, DType type, const Dims& dims, const Dims& strides);
inline Desc any_layout(const Desc& desc) {
  return Desc(desc.get_dims(), desc.get_data_type(), dnnl::memory::format_tag::any);
}
Desc channels_last(const Desc& desc);

// Letters of the dimensions from the slowest to the fastest, then the inner blocks: "acdb", "ABcd16a16b".
std::string layout_name(const Desc& desc);

// The team of a task: one thread where the compiler says so.
int team_of(const Lowering& low);

// Post-operations, scales and zero points of a task, with the memory they need when it runs.
struct Operand {
  int arg;
  Desc desc;
  Location where;
};
// The attributes without a post-operation that replaces NaN by one of its bounds, and all after it.
struct AttributePrefix {
  dnnl::primitive_attr attr;
  int length;  // post-operations that are left
};
struct AttributeSet {
  dnnl::primitive_attr attr;
  std::vector<Operand> operands;
  std::vector<AttributePrefix> before_bounds;  // in their order
  bool accumulates = false;                    // reads what the output held before
};
// `next` is the first input that belongs to post-operations; `rank` the rank of the output as oneDNN sees it;
// `fold` brings a post operand's view to the output's dims (nullptr: pad with leading ones).
class PostOperandShape {
 public:
  virtual ~PostOperandShape() = default;
  virtual Desc describe_operand(const Lowering& low, const View& view) const = 0;
};
// Quantisation attributes are read as well; `scale_mask` is the mask of per-channel weight scales.
// The last `left_out` post-operations are applied elsewhere.
AttributeSet make_attributes(Lowering& low, std::size_t next, int scale_mask, const PostOperandShape& shape,
                             std::size_t left_out = 0);

// Pads an operand's dims with leading ones up to `rank`.
class PaddedOperandShape : public PostOperandShape {
 public:
  explicit PaddedOperandShape(std::size_t rank) : rank_(rank) {}
  Desc describe_operand(const Lowering& low, const View& view) const override;

 private:
  std::size_t rank_;
};

// Puts NaN back where a post-operation has replaced it by a bound: the library's maxima and minima do. They
// also raise the processor's flag for invalid operations; only then the primitive runs again, up to the
// post-operation, to find the places.
//
// A primitive that accumulates needs what its output held before, and keeps a copy. Where the task that makes
// this addend reports NaN and infinities (attribute "raises_on_nan"), it does so only in runs that have met
// them.
struct NanRepair {
  using Primitive = std::pair<dnnl::primitive, Desc>;  // with the scratchpad it needs
  std::vector<AttributePrefix> before_bounds;
  std::function<Primitive(const dnnl::primitive_attr&)> make;  // the same primitive with other attributes
  bool accumulates = false;
  bool reported = false;  // NaN in what the output held before
  // A maximum of windows passes over NaN, and is the lowest number where a window has -inf only: marks of
  // both in the source, pooled alike, tell which results they are.
  bool pools_marks = false;
  bool raises = true;  // otherwise the source is searched for NaN in every run
};
// Primitives that were run again so far, in this process.
std::int64_t nan_repairs();

// Gathers the arguments of a primitive; emits it with the reorders it needs before and after.
class PrimitiveBuilder {
 public:
  explicit PrimitiveBuilder(Lowering& low) : low_(low) {}

  // The primitive reads `view` (seen as `have`) and wants it as `want`: packed once when constant, once a
  // loop when it is steady there, and otherwise whenever the task runs.
  void read(int arg, const View& view, const Desc& have, const Desc& want);
  // The same for a location in scratch memory.
  void read(int arg, const Location& where, const Desc& have, const Desc& want);
  void write(int arg, const View& view, const Desc& have, const Desc& made);
  void add(const Operand& operand) { args_.push_back(operand); }
  void add(const AttributeSet& attributes) {
    args_.insert(args_.end(), attributes.operands.begin(), attributes.operands.end());
  }

  // Emits the steps and records implementation, layout and flops.
  template <class Primitive, class PrimitiveDesc>
  void finish(const PrimitiveDesc& desc, const std::string& layout, double flops, NanRepair repair = {}) {
    low_.describe(desc.impl_info_str(), layout, flops);
    emit(Primitive(desc), desc.scratchpad_desc(), std::move(repair));
  }

 private:
  struct Move {
    Desc from;
    Location source;
    Desc to;
    Location target;
  };

  void emit(dnnl::primitive primitive, const Desc& scratchpad, NanRepair repair);

  Lowering& low_;
  std::vector<Operand> args_;
  std::vector<Move> before_loop_, before_, after_;
};

// Emits one reorder between two places, at the task's turn or once before the loop it is in.
void emit_reorder(Lowering& low, const Desc& from, const Location& source, const Desc& to,
                  const Location& target, bool before_loop = false);

// The attribute every primitive starts from: scratchpads belong to the context.
dnnl::primitive_attr base_attr();

}  // namespace npu
