// Binds steps to addresses.
#include "runtime/context.h"

#include "threads/invalid.h"
#if NPU_ONEDNN
#include "onednn/engine.h"
#endif

namespace npu {

Context::Context(const Program& program)
    : program_(program),
#if NPU_ONEDNN
      stream_(onednn_engine()),
#endif
      inputs_(program.input_count()),
      outputs_(program.output_count()),
      blocks_(program.blocks_.size()),
      preludes_(program.preludes_.size()) {
  bind(program.blocks_, blocks_);
  bind(program.preludes_, preludes_);
  for (BoundBlock& block : preludes_) block.prelude = true;
}

void Context::bind(const std::vector<Program::Block>& blocks, std::vector<BoundBlock>& bound) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    bound[i].tasks = &blocks[i].tasks;
    bound[i].steps.reserve(blocks[i].steps.size());
    for (const auto& step : blocks[i].steps) {
      steps_.push_back(step->bind(*this));
      bound[i].steps.push_back(steps_.back().get());
    }
  }
}

std::size_t Context::offset_of(const Location& where) const {
  return where.space == Location::Space::Held ? program_.held_offset_ + where.offset : where.offset;
}

void Context::Anchor::move_to(void* address) {
  if (address == base) return;
  base = address;
  char* start = static_cast<char*>(address);
  for (const Slot& slot : slots) *slot.where = start + slot.offset;
#if NPU_ONEDNN
  for (const Handle& handle : handles) dnnl_memory_set_data_handle(handle.memory, start + handle.offset);
#endif
}

void Context::rebase(char* arena, void* const* inputs, void* const* outputs) {
  arena_.move_to(arena);
  for (std::size_t i = 0; i < inputs_.size(); ++i) inputs_[i].move_to(inputs[i]);
  for (std::size_t i = 0; i < outputs_.size(); ++i) outputs_[i].move_to(outputs[i]);
}

void Context::advance(const std::vector<std::size_t>& input_steps,
                      const std::vector<std::size_t>& output_steps) {
  const auto move = [](std::vector<Anchor>& anchors, const std::vector<std::size_t>& steps) {
    for (std::size_t i = 0; i < anchors.size(); ++i) {
      anchors[i].move_to(static_cast<char*>(anchors[i].base) + steps[i]);
    }
  };
  move(inputs_, input_steps);
  move(outputs_, output_steps);
}

void Context::addresses(Observation& at) const {
  const auto bases = [](const std::vector<Anchor>& anchors) {
    std::vector<std::uintptr_t> found;
    for (const Anchor& anchor : anchors) found.push_back(reinterpret_cast<std::uintptr_t>(anchor.base));
    return found;
  };
  at.arena = reinterpret_cast<std::uintptr_t>(arena_.base);
  at.inputs = bases(inputs_);
  at.outputs = bases(outputs_);
}

ShapeReport Context::run(TaskClock* clock) {
  clear_invalid();
  RunState state;
#if NPU_ONEDNN
  state.stream = stream_.get();
#endif
  state.clock = clock;
  state.run(blocks_.front());
  return std::move(state.shapes);
}

Context::Anchor& Context::anchor(const Location& where) {
  const auto index = static_cast<std::size_t>(where.index);
  switch (where.space) {
    case Location::Space::Input:
      return inputs_[index];
    case Location::Space::Output:
      return outputs_[index];
    default:
      return arena_;
  }
}

void Context::address(void** slot, const Location& where) {
  if (where.space == Location::Space::Constant) {
    *slot = program_.constant_slots_[static_cast<std::size_t>(where.index)] + where.offset;
    return;
  }
  anchor(where).slots.push_back({slot, offset_of(where)});
}

#if NPU_ONEDNN
dnnl_memory_t Context::memory(const dnnl::memory::desc& desc, const Location& where) {
  const bool fixed = where.space == Location::Space::Constant;
  void* handle = nullptr;
  if (fixed) handle = program_.constant_slots_[static_cast<std::size_t>(where.index)] + where.offset;
  memories_.emplace_back(desc, onednn_engine(), handle);
  dnnl_memory_t memory = memories_.back().get();
  if (!fixed) anchor(where).handles.push_back({memory, offset_of(where)});
  return memory;
}
#endif

}  // namespace npu
