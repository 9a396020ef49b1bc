// Programs: built once from tasks, then run from any number of threads.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/loops.h"
#include "core/view.h"
#include "runtime/step.h"
#include "runtime/task.h"

namespace npu {

class Context;
class Sampling;

// A constant's contents; `owner` keeps them alive.
struct ConstantSource {
  const void* data = nullptr;
  std::shared_ptr<void> owner;
  bool copy = true;  // false: plain uses read the caller's memory
};

struct Buffer {
  enum class Kind { Input, Output, Arena, Constant };
  Kind kind = Kind::Arena;
  int index = 0;           // of the input, output or constant
  std::size_t offset = 0;  // in the arena
  std::size_t nbytes = 0;
  int over = kAnyInput;  // for an output: the input whose memory it may reuse

  static constexpr int kNoInput = -1, kAnyInput = -2;
};

class Program {
 public:
  Program(std::string name, int device);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Building. Each returns the number of the buffer or block; errors are InvalidArgument.
  int input(int index, std::size_t nbytes);
  // `over`: the input whose memory the caller may pass for it, kNoInput for separate memory.
  int output(int index, std::size_t nbytes, int over = Buffer::kAnyInput);
  int arena(std::size_t offset, std::size_t nbytes);
  int constant(ConstantSource source, std::size_t nbytes);
  int block();
  void task(TaskDef task);
  // A run repeats the tasks `times` times; inputs and outputs advance by these bytes after each.
  void repeat(int times, std::vector<std::size_t> input_steps, std::vector<std::size_t> output_steps);
  // The caches and thread cost that it was compiled for; by default those of this processor.
  void set_loops(const Loops& loops);
  // `image`: constants as returned by constant_image() of an equal program, used in place; with it, only the
  // contents of plain_constants() are read. Raises InvalidArgument if the program is not equal.
  void finalize(std::size_t arena_bytes, ConstantSource image = {}, std::size_t image_bytes = 0,
                const std::string& layout = {});

  // Running; from any thread. Addresses are those of all inputs and outputs in order. Returns the run-time
  // shape of each dynamically shaped output (an empty list for others). On a device other than its own a
  // program uses that device's memory and threads; the constants are read where they are.
  ShapeReport run(void* const* inputs, void* const* outputs, Device* where = nullptr);
  // The same in memory of memory_bytes() that the caller owns, including the contents of the arena before and
  // after the run.
  ShapeReport run_in(char* memory, void* const* inputs, void* const* outputs);
  std::vector<double> profile(void* const* inputs, void* const* outputs, int repeats);

  const std::string& name() const { return name_; }
  std::int64_t number() const { return number_; }  // in recordings
  bool finalized() const { return finalized_; }
  std::size_t input_count() const { return input_bytes_.size(); }
  std::size_t output_count() const { return output_bytes_.size(); }
  // The required sizes of a caller's arrays.
  std::size_t input_bytes(std::size_t i) const { return input_bytes_[i] + span(input_steps_, i); }
  std::size_t output_bytes(std::size_t i) const { return output_bytes_[i] + span(output_steps_, i); }
  const std::vector<TaskInfo>& task_info() const { return infos_; }
  std::size_t arena_bytes() const { return arena_bytes_; }
  std::size_t scratch_bytes() const { return scratch_bytes_; }
  std::size_t memory_bytes() const { return arena_bytes_ + scratch_bytes_; }
  std::size_t constant_bytes() const { return constants_.size(); }
  // The constants as packed by finalize(), their layout, and the constants that are read unpacked.
  const char* constant_image() const { return constant_image_; }
  std::size_t image_bytes() const { return image_bytes_; }
  const std::string& image_layout() const { return image_layout_; }
  const std::vector<int>& plain_constants() const { return plain_constants_; }

 private:
  friend class Context;
  friend class ProgramBuilder;

  struct Block {
    std::vector<std::unique_ptr<Step>> steps;
    std::vector<int> tasks;
  };

  // Takes a context from the free list, or creates one; returns it.
  class ContextLease;

  void check_building() const;
  std::size_t span(const std::vector<std::size_t>& steps, std::size_t i) const {
    return i < steps.size() ? steps[i] * static_cast<std::size_t>(times_ - 1) : 0;
  }
  void discard();  // undoes a failed finalize
  int add_io(std::vector<std::size_t>& sizes, Buffer::Kind kind, int index, std::size_t nbytes);
  std::unique_ptr<Context> take_context();
  void give_context(std::unique_ptr<Context> context);
  ShapeReport execute(void* const* inputs, void* const* outputs, TaskClock* clock, char* memory = nullptr,
                      Device* where = nullptr);
  ShapeReport run_times(Context& context, TaskClock* clock);
  ShapeReport run_recorded(Context& context);
  ShapeReport run_observed(Context& context, int device);
  void announce(Device& device);  // a device that it runs on

  std::string name_;
  std::int64_t number_;
  std::shared_ptr<Sampling> sampling_;     // of its recorded runs
  std::atomic<std::int64_t> observed_{0};  // runs
  int activity_ = -1;                      // its slot in the page of counters
  Device& device_;
  int threads_ = 1;
  Loops loops_ = host_loops();
  bool finalized_ = false;
  std::string arena_requester_;
  std::vector<Buffer> buffers_;
  std::vector<std::size_t> input_bytes_, output_bytes_;
  int times_ = 1;
  std::vector<std::size_t> input_steps_, output_steps_;
  std::vector<ConstantSource> sources_;
  std::vector<TaskDef> tasks_;
  std::vector<TaskInfo> infos_;
  std::vector<Block> blocks_;
  std::vector<Block> preludes_;  // per block: what a loop over it runs once before its first step
  DeviceMemory constants_;
  const char* constant_image_ = nullptr;
  std::size_t image_bytes_ = 0;
  std::string image_layout_;
  std::vector<int> plain_constants_;
  std::vector<char*> constant_slots_;
  std::vector<std::shared_ptr<void>> kept_;  // owners of constants that are used in place
  std::size_t arena_bytes_ = 0;
  std::size_t scratch_bytes_ = 0;  // including what loops hold at its end
  std::size_t held_offset_ = 0;    // where that begins, from the arena's start

  std::mutex mutex_;
  std::vector<Device*> elsewhere_;  // other devices that it has run on
  std::vector<std::unique_ptr<Context>> free_;
};

}  // namespace npu
