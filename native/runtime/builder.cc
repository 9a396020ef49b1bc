// Builds programs: lowers every task, then places all constants in one block and fills it.
#include <algorithm>
#include <cstring>
#include <sstream>

#include "core/errors.h"
#include "core/parallel.h"
#include "runtime/context.h"
#include "runtime/lowering.h"
#include "runtime/program.h"
#include "threads/team.h"
#if NPU_ONEDNN
#include "onednn/engine.h"
#include "onednn/primitive.h"
#endif

namespace npu {
namespace {

constexpr std::size_t kConstantAlignment = 64;
constexpr std::size_t kLargeConstant = 64 << 10;
constexpr std::size_t kPage = 4096;

std::size_t align_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

class ProgramBuilder : public LoweringHost {
 public:
  ProgramBuilder(Program& program, std::size_t arena_bytes, ConstantSource image, std::size_t image_bytes,
                 std::string layout)
      : program_(program),
        scratch_base_(align_up(arena_bytes, kPage)),
        image_(std::move(image)),
        image_bytes_(image_bytes),
        image_layout_(std::move(layout)) {}

  void build() {
    program_.threads_ = program_.device_.threads();
    const PoolScope pool(program_.device_.index());
    const TeamScope team(program_.threads_);
    const LoopsScope loops(program_.loops_);
    check_arena();
    program_.preludes_.resize(program_.blocks_.size());
    lower_tasks();
    program_.arena_bytes_ = scratch_base_;
    scratch_bytes_ = align_up(scratch_bytes_, kConstantAlignment);
    program_.held_offset_ = scratch_base_ + scratch_bytes_;
    program_.scratch_bytes_ = scratch_bytes_ + held_bytes_;
    place_constants();
    if (!image_.data) fill_constants();
    keep_owners();
  }

 private:
  enum class Fill { Plain, Packed, Prepared, Literal, External };
  struct Slot {
    Fill fill = Fill::Plain;
    std::size_t bytes = 0;
    int source = -1;
    std::int64_t byte_offset = 0;
#if NPU_ONEDNN
    dnnl::memory::desc from, to;
#endif
    std::vector<char> literal;
    Prepare prepare;
    std::size_t place = 0;
  };

  // LoweringHost

  bool is_constant(int buffer) const override { return buffer_of(buffer).kind == Buffer::Kind::Constant; }

  Location locate(const View& view) override {
    const Buffer& buffer = buffer_of(view.buffer);
    const auto offset = static_cast<std::size_t>(view.byte_offset());
    switch (buffer.kind) {
      case Buffer::Kind::Input:
        return {Location::Space::Input, buffer.index, offset};
      case Buffer::Kind::Output:
        return {Location::Space::Output, buffer.index, offset};
      case Buffer::Kind::Arena:
        return {Location::Space::Arena, 0, buffer.offset + offset};
      case Buffer::Kind::Constant:
        break;
    }
    return {Location::Space::Constant, plain_slot(buffer), offset};
  }

  Location scratch(std::size_t offset) override {
    return {Location::Space::Arena, 0, scratch_base_ + offset};
  }

#if NPU_ONEDNN
  Location packed(const View& view, const dnnl::memory::desc& from, const dnnl::memory::desc& to) override {
    const Buffer& buffer = buffer_of(view.buffer);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      if (slot.fill == Fill::Packed && slot.source == buffer.index &&
          slot.byte_offset == view.byte_offset() && slot.from == from && slot.to == to) {
        return {Location::Space::Constant, static_cast<int>(i), 0};
      }
    }
    Slot slot;
    slot.fill = Fill::Packed;
    slot.bytes = to.get_size();
    slot.source = buffer.index;
    slot.byte_offset = view.byte_offset();
    slot.from = from;
    slot.to = to;
    return add_slot(std::move(slot));
  }
#endif

  Location prepared(const View& view, std::size_t bytes, Prepare prepare) override {
    Slot slot;
    slot.fill = Fill::Prepared;
    slot.bytes = bytes;
    slot.source = buffer_of(view.buffer).index;
    slot.byte_offset = view.byte_offset();
    slot.prepare = std::move(prepare);
    return add_slot(std::move(slot));
  }

  Location literal(const void* data, std::size_t bytes) override {
    Slot slot;
    slot.fill = Fill::Literal;
    slot.bytes = bytes;
    const auto* begin = static_cast<const char*>(data);
    slot.literal.assign(begin, begin + bytes);
    return add_slot(std::move(slot));
  }

  int output_of(const View& view) const override {
    const Buffer& buffer = buffer_of(view.buffer);
    return buffer.kind == Buffer::Kind::Output && view.offset == 0 ? buffer.index : -1;
  }

  std::vector<std::pair<int, Dims>> stored_outputs(int block) const override {
    std::vector<std::pair<int, Dims>> found;
    for (const TaskDef& task : program_.tasks_) {
      if (task.block != block || task.kind != "scan_store" || task.outputs.empty()) continue;
      if (!task.attrs.flag("counted")) continue;
      const int output = output_of(task.outputs[0]);
      if (output >= 0) found.emplace_back(output, task.outputs[0].dims);
    }
    return found;
  }

  int block_count() const override { return static_cast<int>(program_.blocks_.size()); }

  void emit(std::unique_ptr<Step> step) override { append(program_.blocks_, std::move(step)); }

  bool is_steady(const View& view) const override {
    const int block = program_.tasks_[task_].block;
    const TaskDef* loop = loop_over(block);
    const Buffer& buffer = buffer_of(view.buffer);
    if (!loop || (buffer.kind != Buffer::Kind::Arena && buffer.kind != Buffer::Kind::Input)) return false;
    const auto keeps = [&](const View& written) { return !may_change(buffer_of(written.buffer), buffer); };
    return std::all_of(loop->outputs.begin(), loop->outputs.end(), keeps) && writes_only(block, keeps);
  }

  Location held(std::size_t bytes) override {
    const std::size_t place = held_bytes_;
    held_bytes_ = align_up(held_bytes_ + bytes, kConstantAlignment);
    return {Location::Space::Held, 0, place};
  }

  void emit_before_loop(std::unique_ptr<Step> step) override { append(program_.preludes_, std::move(step)); }

  void append(std::vector<Program::Block>& blocks, std::unique_ptr<Step> step) {
    Program::Block& block = blocks[static_cast<std::size_t>(program_.tasks_[task_].block)];
    block.steps.push_back(std::move(step));
    block.tasks.push_back(static_cast<int>(task_));
  }

  // Loops
  const TaskDef* loop_over(int block) const {
    for (const TaskDef& task : program_.tasks_) {
      if (task.kind == "while" && task.attrs.integer("body_block", 0) == block) return &task;
    }
    return nullptr;
  }

  // Whether writing to one buffer may change another. An output may be where an input is, as it was
  // declared.
  static bool may_change(const Buffer& written, const Buffer& read) {
    if (read.kind == Buffer::Kind::Input) {
      return written.kind == Buffer::Kind::Output &&
             (written.over == Buffer::kAnyInput || written.over == read.index);
    }
    return written.kind == Buffer::Kind::Arena && written.offset < read.offset + read.nbytes &&
           read.offset < written.offset + written.nbytes;
  }

  // True if all writes of a block and its nested blocks satisfy a predicate.
  template <class Test>
  bool writes_only(int block, const Test& test) const {
    for (const TaskDef& task : program_.tasks_) {
      if (task.block != block) continue;
      if (!std::all_of(task.outputs.begin(), task.outputs.end(), test)) return false;
      for (const char* name : {"then_block", "else_block", "body_block"}) {
        const auto inner = static_cast<int>(task.attrs.integer(name, 0));
        if (inner > 0 && !writes_only(inner, test)) return false;
      }
    }
    return true;
  }

  // Building
  const Buffer& buffer_of(int buffer) const { return program_.buffers_[static_cast<std::size_t>(buffer)]; }

  Location add_slot(Slot slot) {
    slots_.push_back(std::move(slot));
    return {Location::Space::Constant, static_cast<int>(slots_.size()) - 1, 0};
  }

  int plain_slot(const Buffer& buffer) {
    if (plain_slots_.empty()) plain_slots_.assign(program_.sources_.size(), -1);
    int& known = plain_slots_[static_cast<std::size_t>(buffer.index)];
    if (known < 0) {
      Slot slot;
      slot.fill =
          program_.sources_[static_cast<std::size_t>(buffer.index)].copy ? Fill::Plain : Fill::External;
      slot.bytes = buffer.nbytes;
      slot.source = buffer.index;
      known = add_slot(std::move(slot)).index;
    }
    return known;
  }

  void check_arena() const {
    for (const Buffer& buffer : program_.buffers_) {
      if (buffer.kind != Buffer::Kind::Arena) continue;
      if (buffer.offset > scratch_base_ || scratch_base_ - buffer.offset < buffer.nbytes) {
        throw InvalidArgument("program '" + program_.name_ + "': arena buffer at " +
                              std::to_string(buffer.offset) + " of " + std::to_string(buffer.nbytes) +
                              " bytes reaches outside the arena");
      }
    }
  }

  void lower_tasks() {
    for (task_ = 0; task_ < program_.tasks_.size(); ++task_) {
      const TaskDef& task = program_.tasks_[task_];
      TaskInfo info{task.name, task.kind, "", "", 0, 0};
      for (const View& view : task.inputs) info.bytes += static_cast<double>(view.bytes());
      for (const View& view : task.outputs) info.bytes += static_cast<double>(view.bytes());
      std::size_t scratch = 0;
      lower_task(task, *this, info, scratch);
      scratch_bytes_ = std::max(scratch_bytes_, scratch);
      program_.infos_.push_back(std::move(info));
    }
  }

  void place_constants() {
    std::size_t end = 0;
    for (Slot& slot : slots_) {
      if (slot.fill == Fill::External) continue;
      end = align_up(end, slot.bytes >= kLargeConstant ? kPage : kConstantAlignment);
      slot.place = end;
      end += slot.bytes;
    }
    program_.image_layout_ = layout_text();
    program_.image_bytes_ = end;
    program_.constant_image_ = image_.data ? checked_image() : new_constants(end);
    for (const Slot& slot : slots_) {
      char* place = const_cast<char*>(program_.constant_image_) + slot.place;
      if (slot.fill == Fill::External) {
        place = static_cast<char*>(const_cast<void*>(source_of(slot)));
        program_.plain_constants_.push_back(slot.source);
      }
      program_.constant_slots_.push_back(place);
    }
  }

  const char* new_constants(std::size_t bytes) {
    if (!bytes) return nullptr;
    program_.constants_ = DeviceMemory(program_.device_, MemoryUse::Constants, bytes,
                                       "the constants of program '" + program_.name_ + "'");
    return program_.constants_.data();
  }

  const char* checked_image() const {
    if (program_.image_layout_ != image_layout_ || program_.image_bytes_ != image_bytes_) {
      throw InvalidArgument("program '" + program_.name_ +
                            "': the image of its constants is laid out differently");
    }
    return static_cast<const char*>(image_.data);
  }

  // Key of the constants' contents, for comparing programs.
  std::string layout_text() const {
    std::ostringstream text;
    for (const Slot& slot : slots_) {
      text << static_cast<int>(slot.fill) << ',' << slot.source << ',' << slot.byte_offset << ','
           << slot.bytes << ',' << slot.place;
#if NPU_ONEDNN
      if (slot.fill == Fill::Packed) text << ',' << layout_name(slot.from) << '>' << layout_name(slot.to);
#endif
      text << ';';
    }
    return text.str();
  }

  const void* source_of(const Slot& slot) const {
    return program_.sources_[static_cast<std::size_t>(slot.source)].data;
  }

  void fill_constants() {
#if NPU_ONEDNN
    dnnl::stream stream(onednn_engine());
#endif
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      char* place = program_.constant_slots_[i];
      switch (slot.fill) {
        case Fill::Plain:
          if (slot.bytes) std::memcpy(place, source_of(slot), slot.bytes);
          break;
        case Fill::Literal:
          std::copy(slot.literal.begin(), slot.literal.end(), place);
          break;
        case Fill::Prepared:
          slot.prepare(static_cast<const char*>(source_of(slot)) + slot.byte_offset, place);
          break;
        case Fill::Packed:
#if NPU_ONEDNN
          pack(slot, place, stream);
#endif
          break;
        case Fill::External:
          break;
      }
    }
#if NPU_ONEDNN
    stream.wait();
#endif
  }

#if NPU_ONEDNN
  void pack(const Slot& slot, char* place, dnnl::stream& stream) const {
    const char* data = static_cast<const char*>(source_of(slot)) + slot.byte_offset;
    dnnl::memory from(slot.from, onednn_engine(), const_cast<char*>(data));
    dnnl::memory to(slot.to, onednn_engine(), place);
    dnnl::reorder(from, to).execute(stream, from, to);
  }
#endif

  // Keep the sources of constants read in place, release all others.
  void keep_owners() {
    for (const Slot& slot : slots_) {
      if (slot.fill == Fill::External) {
        program_.kept_.push_back(program_.sources_[static_cast<std::size_t>(slot.source)].owner);
      }
    }
    if (image_.data) program_.kept_.push_back(image_.owner);
  }

  Program& program_;
  std::size_t scratch_base_;
  ConstantSource image_;
  std::size_t image_bytes_;
  std::string image_layout_;
  std::size_t scratch_bytes_ = 0;
  std::size_t held_bytes_ = 0;
  std::size_t task_ = 0;
  std::vector<Slot> slots_;
  std::vector<int> plain_slots_;
};

void Program::finalize(std::size_t arena_bytes, ConstantSource image, std::size_t image_bytes,
                       const std::string& layout) {
  check_building();
  try {
    ProgramBuilder(*this, arena_bytes, std::move(image), image_bytes, layout).build();
    arena_requester_ = "the arena of program '" + name_ + "'";
    device_.arenas().add_user(arena_bytes_ + scratch_bytes_);
    finalized_ = true;
    free_.push_back(std::make_unique<Context>(*this));
    device_.arenas().borrow(arena_bytes_ + scratch_bytes_, nullptr,
                            arena_requester_);  // fail now, not at run
    sources_.clear();
  } catch (...) {
    discard();
    throw;
  }
}

void Program::discard() {
  free_.clear();
  if (finalized_) device_.arenas().remove_user(arena_bytes_ + scratch_bytes_);
  finalized_ = false;
  for (Block& block : blocks_) block = Block{};
  preludes_.clear();
  infos_.clear();
  constants_ = DeviceMemory();
  constant_image_ = nullptr;
  constant_slots_.clear();
  plain_constants_.clear();
  kept_.clear();
}

}  // namespace npu
