// A context: the mutable state of one run of a program.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/observer.h"
#include "runtime/program.h"
#include "runtime/step.h"

namespace npu {

class Context : private Binder {
 public:
  explicit Context(const Program& program);

  // Binds the steps to these addresses; only those that changed since the last run are patched.
  void rebase(char* arena, void* const* inputs, void* const* outputs);
  // Advances every input and output by its step.
  void advance(const std::vector<std::size_t>& input_steps, const std::vector<std::size_t>& output_steps);
  ShapeReport run(TaskClock* clock);
  char* arena() const { return static_cast<char*>(arena_.base); }
  // Fills in the current addresses.
  void addresses(Observation& at) const;

 private:
  // All uses of one base address.
  struct Anchor {
    struct Slot {
      void** where;
      std::size_t offset;
    };
    void* base = nullptr;
    std::vector<Slot> slots;
#if NPU_ONEDNN
    struct Handle {
      dnnl_memory_t memory;
      std::size_t offset;
    };
    std::vector<Handle> handles;
#endif

    void move_to(void* address);
  };

  void address(void** slot, const Location& where) override;
#if NPU_ONEDNN
  dnnl_memory_t memory(const dnnl::memory::desc& desc, const Location& where) override;
#endif
  const BoundBlock* block(int index) override { return &blocks_[static_cast<std::size_t>(index)]; }
  const BoundBlock* prelude(int index) override { return &preludes_[static_cast<std::size_t>(index)]; }
  void bind(const std::vector<Program::Block>& blocks, std::vector<BoundBlock>& bound);
  std::size_t offset_of(const Location& where) const;
  Anchor& anchor(const Location& where);

  const Program& program_;
#if NPU_ONEDNN
  dnnl::stream stream_;
  std::vector<dnnl::memory> memories_;
#endif
  Anchor arena_;
  std::vector<Anchor> inputs_, outputs_;
  std::vector<std::unique_ptr<BoundStep>> steps_;
  std::vector<BoundBlock> blocks_, preludes_;
};

}  // namespace npu
