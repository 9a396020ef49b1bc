// A CUDA driver that is simulated on the host: memory is the host's, a stream keeps what it is given until
// somebody waits for it, and the threads of a block are fibers that switch at barriers and exchanges. It
// makes executors testable without a GPU: who does not wait reads what was there before.
#include <ucontext.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/errors.h"
#include "core/object.h"
#include "cuda/driver.h"

namespace npu::cuda {
namespace {

constexpr std::size_t kMemory = std::size_t{1} << 30;
constexpr std::size_t kStack = 64 * 1024;
constexpr std::size_t kShared = 48 * 1024;
constexpr Result kInvalid = 1;
constexpr Result kUnjoined = 904;
constexpr Result kNotFound = 500;
constexpr Result kBadImage = 200;
constexpr int kDevices = 2;

// What a simulated thread sees of itself; the layout is that of tbe.cuda.platforms.Simulated.
struct Thread {
  std::int32_t number;
  std::int32_t block;
  void* shared;
  void (*barrier)(Thread*);
  std::int32_t (*exchange)(Thread*, std::int32_t, std::int32_t);
};

using ThreadFn = void (*)(void** args, Thread* thread);

// The threads of one block, each a fiber. A barrier returns to the scheduler, which resumes every fiber in
// turn, so that all have reached it when the first goes on.
class Block {
 public:
  Block(ThreadFn entry, void** args, int threads)
      : entry_(entry), args_(args), fibers_(threads), shared_(kShared) {
    for (Fiber& fiber : fibers_) fiber.stack = std::make_unique_for_overwrite<char[]>(kStack);
  }

  void run(int block) {
    std::memset(shared_.data(), 0xA5, shared_.size());  // what nobody has written is no useful number
    for (std::size_t n = 0; n < fibers_.size(); ++n) start(n, block);
    std::size_t left = fibers_.size();
    while (left > 0) {
      for (Fiber& fiber : fibers_) {
        if (fiber.done) continue;
        swapcontext(&scheduler_, &fiber.context);
        if (fiber.done) --left;
      }
    }
  }

 private:
  struct Fiber {
    Thread thread;
    Block* owner = nullptr;
    std::int32_t slot = 0;
    bool done = false;
    ucontext_t context;
    std::unique_ptr<char[]> stack;
  };

  void start(std::size_t n, int block) {
    Fiber& fiber = fibers_[n];
    fiber.thread = {static_cast<std::int32_t>(n), block, shared_.data(), &Block::barrier, &Block::exchange};
    fiber.owner = this;
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = &scheduler_;
    const auto address = reinterpret_cast<std::uintptr_t>(&fiber);
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Block::body), 2,
                static_cast<unsigned>(address >> 32), static_cast<unsigned>(address));
  }

  static void body(unsigned high, unsigned low) {
    Fiber& fiber = *reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32 | low);
    fiber.owner->entry_(fiber.owner->args_, &fiber.thread);
    fiber.done = true;
  }

  static Fiber& fiber_of(Thread* thread) { return *reinterpret_cast<Fiber*>(thread); }

  static void barrier(Thread* thread) {
    Fiber& fiber = fiber_of(thread);
    swapcontext(&fiber.context, &fiber.owner->scheduler_);
  }

  static std::int32_t exchange(Thread* thread, std::int32_t value, std::int32_t distance) {
    Fiber& fiber = fiber_of(thread);
    fiber.slot = value;
    barrier(thread);
    const std::int32_t found = fiber.owner->fibers_[thread->number ^ distance].slot;
    barrier(thread);
    return found;
  }

  ThreadFn entry_;
  void** args_;
  std::vector<Fiber> fibers_;
  std::vector<char> shared_;
  ucontext_t scheduler_;
};

using Work = std::function<void()>;

struct Stream;

// Streams that wait for an event of a capturing stream take part in the capture; in the end the first one
// must wait for all others.
struct Capture {
  std::vector<Work> work;
  std::set<const Stream*> apart;  // streams with work that the first one does not wait for
  const Stream* first = nullptr;
  bool open = true;
};

struct Stream {
  std::shared_ptr<Capture> captured;
  std::deque<Work> waiting;

  bool is_captured() const { return captured != nullptr && captured->open; }
};

struct Graph {
  std::vector<Work> work;
};

// A record of an event: reached when the stream has run what it was given before.
struct Mark {
  std::chrono::steady_clock::time_point at;
  bool reached = false;
  Stream* stream = nullptr;
};

struct Event {
  std::shared_ptr<Mark> mark;
  std::shared_ptr<Capture> capture;
  const Stream* recorded_on = nullptr;
};

struct Function {
  std::shared_ptr<KernelObject> code;
};

struct Module {
  std::vector<std::byte> image;
  std::map<std::string, Function> functions;
};

struct State {
  std::mutex mutex;
  std::map<Address, std::size_t> memory;
  std::size_t used = 0;
  std::recursive_mutex running;  // held while streams are changed or run
  Stream default_stream;
  std::set<Stream*> streams{&default_stream};
};

State& state() {
  static State value;
  return value;
}

Stream* of(StreamHandle handle) {
  return handle == nullptr ? &state().default_stream : reinterpret_cast<Stream*>(handle);
}

Result enqueue(StreamHandle handle, Work work) {
  const std::scoped_lock lock(state().running);
  if (of(handle)->is_captured()) {
    Capture& capture = *of(handle)->captured;
    if (of(handle) != capture.first) capture.apart.insert(of(handle));
    capture.work.push_back(std::move(work));
  } else {
    of(handle)->waiting.push_back(std::move(work));
  }
  return 0;
}

// Runs the next piece of work of a stream; false where there is none.
bool advance(Stream& stream) {
  if (stream.waiting.empty()) return false;
  const Work work = std::move(stream.waiting.front());
  stream.waiting.pop_front();
  work();
  return true;
}

void finish(Stream& stream) {
  const std::scoped_lock lock(state().running);
  while (advance(stream)) {
  }
}

Result finish_all() {
  const std::scoped_lock lock(state().running);
  for (Stream* stream : state().streams) finish(*stream);
  return 0;
}

void reach(const Mark& mark) {
  const std::scoped_lock lock(state().running);
  while (!mark.reached && advance(*mark.stream)) {
  }
}

// Whether all bytes belong to one allocation.
bool is_ours(Address address, std::size_t bytes) {
  const std::scoped_lock lock(state().mutex);
  auto found = state().memory.upper_bound(address);
  if (found == state().memory.begin()) return false;
  --found;
  return address + bytes <= found->first + found->second;
}

void* host(Address address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }

Result allocate(Address* address, std::size_t bytes) {
  const std::scoped_lock lock(state().mutex);
  if (bytes == 0) return kInvalid;
  if (state().used + bytes > kMemory) return kOutOfMemory;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (memory == nullptr) return kOutOfMemory;
  std::memset(memory, 0xA5, bytes);
  *address = static_cast<Address>(reinterpret_cast<std::uintptr_t>(memory));
  state().memory[*address] = bytes;
  state().used += bytes;
  return 0;
}

Result release(Address address) {
  finish_all();  // as the driver does
  const std::scoped_lock lock(state().mutex);
  const auto found = state().memory.find(address);
  if (found == state().memory.end()) return kInvalid;
  state().used -= found->second;
  state().memory.erase(found);
  std::free(host(address));
  return 0;
}

Result memory_info(std::size_t* free, std::size_t* total) {
  const std::scoped_lock lock(state().mutex);
  *total = kMemory;
  *free = kMemory - state().used;
  return 0;
}

Result copy_to_device(Address to, const void* from, std::size_t bytes, StreamHandle stream) {
  if (!is_ours(to, bytes)) return kInvalid;
  return enqueue(stream, [=] { std::memcpy(host(to), from, bytes); });
}

Result copy_to_host(void* to, Address from, std::size_t bytes, StreamHandle stream) {
  if (!is_ours(from, bytes)) return kInvalid;
  return enqueue(stream, [=] { std::memcpy(to, host(from), bytes); });
}

Result copy_on_device(Address to, Address from, std::size_t bytes, StreamHandle stream) {
  if (!is_ours(to, bytes) || !is_ours(from, bytes)) return kInvalid;
  return enqueue(stream, [=] { std::memcpy(host(to), host(from), bytes); });
}

Result fill(Address to, unsigned char byte, std::size_t bytes, StreamHandle stream) {
  if (!is_ours(to, bytes)) return kInvalid;
  return enqueue(stream, [=] { std::memset(host(to), byte, bytes); });
}

Result stream_create(StreamHandle* stream, unsigned) {
  const std::scoped_lock lock(state().running);
  auto* made = new Stream;
  state().streams.insert(made);
  *stream = reinterpret_cast<StreamHandle>(made);
  return 0;
}

Result stream_destroy(StreamHandle stream) {
  const std::scoped_lock lock(state().running);
  finish(*of(stream));
  state().streams.erase(of(stream));
  delete of(stream);
  return 0;
}

Result stream_synchronize(StreamHandle stream) {
  if (of(stream)->is_captured()) return kInvalid;
  finish(*of(stream));
  return 0;
}

// Who asks again and again comes to an end: each time a piece of work is done.
Result stream_query(StreamHandle stream) {
  const std::scoped_lock lock(state().running);
  if (of(stream)->waiting.empty()) return 0;
  advance(*of(stream));
  return kNotReady;
}

Result capture_begin(StreamHandle stream, int) {
  if (of(stream)->is_captured()) return kInvalid;
  of(stream)->captured = std::make_shared<Capture>();
  of(stream)->captured->first = of(stream);
  return 0;
}

Result capture_end(StreamHandle stream, GraphHandle* graph) {
  if (!of(stream)->is_captured()) return kInvalid;
  Capture& capture = *of(stream)->captured;
  capture.open = false;
  if (!capture.apart.empty()) return kUnjoined;
  *graph = reinterpret_cast<GraphHandle>(new Graph{std::move(capture.work)});
  return 0;
}

Result stream_wait(StreamHandle stream, EventHandle handle, unsigned) {
  const Event& event = *reinterpret_cast<Event*>(handle);
  if (event.capture == nullptr || !event.capture->open) {
    if (event.mark) enqueue(stream, [mark = event.mark] { reach(*mark); });
    return 0;
  }
  of(stream)->captured = event.capture;
  event.capture->apart.erase(event.recorded_on);
  return 0;
}

Result graph_instantiate(GraphExecHandle* exec, GraphHandle graph, unsigned long long) {
  *exec = reinterpret_cast<GraphExecHandle>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return 0;
}

Result graph_nodes(GraphHandle graph, void*, std::size_t* count) {
  *count = reinterpret_cast<Graph*>(graph)->work.size();
  return 0;
}

Result graph_launch(GraphExecHandle exec, StreamHandle stream) {
  for (const Work& work : reinterpret_cast<Graph*>(exec)->work) enqueue(stream, work);
  return 0;
}

Result graph_destroy(GraphHandle graph) {
  delete reinterpret_cast<Graph*>(graph);
  return 0;
}

Result graph_exec_destroy(GraphExecHandle exec) {
  delete reinterpret_cast<Graph*>(exec);
  return 0;
}

Result event_create(EventHandle* event, unsigned) {
  *event = reinterpret_cast<EventHandle>(new Event);
  return 0;
}

Result event_destroy(EventHandle event) {
  delete reinterpret_cast<Event*>(event);
  return 0;
}

Result event_record(EventHandle event, StreamHandle stream) {
  Event& made = *reinterpret_cast<Event*>(event);
  made.capture = of(stream)->is_captured() ? of(stream)->captured : nullptr;
  made.recorded_on = of(stream);
  if (made.capture) return 0;
  made.mark = std::make_shared<Mark>();
  made.mark->stream = of(stream);
  return enqueue(stream, [mark = made.mark] {
    mark->at = std::chrono::steady_clock::now();
    mark->reached = true;
  });
}

Result event_synchronize(EventHandle event) {
  if (const auto mark = reinterpret_cast<Event*>(event)->mark) reach(*mark);
  return 0;
}

Result event_query(EventHandle event) {
  const std::scoped_lock lock(state().running);
  const auto mark = reinterpret_cast<Event*>(event)->mark;
  if (!mark || mark->reached) return 0;
  advance(*mark->stream);
  return kNotReady;
}

Result event_elapsed(float* milliseconds, EventHandle begin, EventHandle end) {
  const auto first = reinterpret_cast<Event*>(begin)->mark, last = reinterpret_cast<Event*>(end)->mark;
  if (!first || !last) return kInvalid;
  if (!first->reached || !last->reached) return kNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(last->at - first->at).count();
  return 0;
}

// An ELF object says itself where it ends: its section headers come last.
std::size_t object_size(const char* image) {
  std::uint64_t headers = 0;
  std::uint16_t size = 0, count = 0;
  std::memcpy(&headers, image + 40, sizeof headers);
  std::memcpy(&size, image + 58, sizeof size);
  std::memcpy(&count, image + 60, sizeof count);
  return headers + std::size_t{size} * count;
}

Result module_load(ModuleHandle* module, const void* image, unsigned, int*, void**) {
  const auto* bytes = static_cast<const char*>(image);
  if (std::memcmp(bytes, "\177ELF", 4) != 0) return kBadImage;
  const auto* begin = reinterpret_cast<const std::byte*>(bytes);
  *module = reinterpret_cast<ModuleHandle>(new Module{{begin, begin + object_size(bytes)}, {}});
  return 0;
}

Result module_unload(ModuleHandle module) {
  delete reinterpret_cast<Module*>(module);
  return 0;
}

Result module_function(FunctionHandle* function, ModuleHandle handle, const char* name) {
  Module& module = *reinterpret_cast<Module*>(handle);
  try {
    Function& found = module.functions[name];
    if (!found.code) found.code = KernelObject::load(std::span(module.image), name);
    *function = reinterpret_cast<FunctionHandle>(&found);
    return 0;
  } catch (const ObjectError&) {
    module.functions.erase(name);
    return kNotFound;
  }
}

// Parameters are addresses; the end of their list is a null pointer, which the executor adds and real drivers
// ignore.
Result launch(FunctionHandle function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
              unsigned, unsigned, StreamHandle stream, void** parameters, void**) {
  if (blocks == 0 || threads == 0 || threads > 1024) return kInvalid;
  std::vector<void*> values;
  for (; *parameters != nullptr; ++parameters) values.push_back(host(*static_cast<Address*>(*parameters)));
  const auto code = reinterpret_cast<Function*>(function)->code;
  return enqueue(stream, [=]() mutable {
    const auto entry = reinterpret_cast<ThreadFn>(reinterpret_cast<void*>(code->entry()));
    Block block(entry, values.data(), static_cast<int>(threads));
    for (unsigned n = 0; n < blocks; ++n) block.run(static_cast<int>(n));
  });
}

Result device_name(char* name, int length, Ordinal) {
  std::strncpy(name, "simulated GPU", length);
  return 0;
}

Result device_attribute(int* value, int attribute, Ordinal) {
  const std::map<int, int> known = {
      {kMultiprocessorCount, 132}, {kCacheBytes, 50 << 20}, {kCapabilityMajor, 9}};
  const auto found = known.find(attribute);
  *value = found == known.end() ? 0 : found->second;
  return 0;
}

Result error_name(Result error, const char** name) {
  const std::map<Result, const char*> names = {{kInvalid, "CUDA_ERROR_INVALID_VALUE"},
                                               {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                               {kBadImage, "CUDA_ERROR_INVALID_IMAGE"},
                                               {kNotReady, "CUDA_ERROR_NOT_READY"},
                                               {kNotFound, "CUDA_ERROR_NOT_FOUND"}};
  const auto found = names.find(error);
  *name = found == names.end() ? nullptr : found->second;
  return 0;
}

Driver table() {
  Driver d{};
  d.init = [](unsigned) { return 0; };
  d.driver_version = [](int* version) { return *version = 13000, 0; };
  d.error_name = error_name;
  d.error_text = [](Result, const char** text) { return *text = nullptr, 0; };
  d.device_count = [](int* count) { return *count = kDevices, 0; };
  d.device_get = [](Ordinal* device, int index) { return *device = index, index < kDevices ? 0 : kInvalid; };
  d.device_name = device_name;
  d.device_attribute = device_attribute;
  d.device_memory = [](std::size_t* bytes, Ordinal) { return *bytes = kMemory, 0; };
  d.context_retain = [](ContextHandle* context, Ordinal) { return *context = nullptr, 0; };
  d.context_set = [](ContextHandle) { return 0; };
  d.context_synchronize = finish_all;
  d.memory_info = memory_info;
  d.allocate = allocate;
  d.release = release;
  d.allocate_host = [](void** address, std::size_t bytes) { return *address = std::malloc(bytes), 0; };
  d.release_host = [](void* address) { return std::free(address), 0; };
  d.copy_to_device = copy_to_device;
  d.copy_to_host = copy_to_host;
  d.copy_on_device = copy_on_device;
  d.copy_anywhere = copy_on_device;
  d.fill = fill;
  d.stream_create = stream_create;
  d.stream_destroy = stream_destroy;
  d.stream_synchronize = stream_synchronize;
  d.stream_query = stream_query;
  d.stream_wait = stream_wait;
  d.capture_begin = capture_begin;
  d.capture_end = capture_end;
  d.event_create = event_create;
  d.event_destroy = event_destroy;
  d.event_record = event_record;
  d.event_synchronize = event_synchronize;
  d.event_query = event_query;
  d.event_elapsed = event_elapsed;
  d.module_load = module_load;
  d.module_unload = module_unload;
  d.module_function = module_function;
  d.function_attribute = [](FunctionHandle, int, int) { return 0; };
  d.launch = launch;
  d.graph_instantiate = graph_instantiate;
  d.graph_destroy = graph_destroy;
  d.graph_nodes = graph_nodes;
  d.graph_launch = graph_launch;
  d.graph_exec_destroy = graph_exec_destroy;
  return d;
}

}  // namespace

const Driver& simulated_driver() {
  static const Driver value = table();
  return value;
}

}  // namespace npu::cuda
