// acl/acl.h: the process, devices, contexts, streams, events and memory.
#include <pthread.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

#include "c/acl_state.h"
#include "core/condition.h"
#include "core/device.h"
#include "core/processor.h"

namespace npu::acl {
namespace {

struct Process {
  std::mutex mutex;
  bool initialised = false, finalised = false;
  std::map<int, Context*> primary;  // of each device that was set
};

Process& process() {
  static Process state;
  return state;
}

// Never destroyed: the caller's threads may outlive static objects.
Live<Context>& contexts() {
  static auto* all = new Live<Context>("context", ACL_ERROR_RT_CONTEXT_NULL);
  return *all;
}

Live<Stream>& streams() {
  static auto* all = new Live<Stream>("stream", ACL_ERROR_RT_PARAM_INVALID);
  return *all;
}

Live<Event>& events() {
  static auto* all = new Live<Event>("event", ACL_ERROR_RT_PARAM_INVALID);
  return *all;
}

thread_local Context* thread_context = nullptr;

int check_device(int device) {
  require(device >= 0 && device < Device::count(),
          "device " + std::to_string(device) + ": there are " + std::to_string(Device::count()),
          ACL_ERROR_RT_INVALID_DEVICEID);
  return device;
}

void forget_context(const Context& context) {
  if (thread_context == &context) thread_context = nullptr;
}

void synchronise(Stream& stream, std::optional<std::chrono::milliseconds> limit = {}) {
  const std::optional<Failure> failure = stream.synchronize(limit);
  require(failure.has_value(), "the stream has not finished in time", ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
  if (failure->code) throw AclError(code_of(failure->code), failure->message);
}

// -- callbacks: run by the thread subscribed to the stream

struct Report {
  aclrtCallback function;
  void* data;
  std::shared_ptr<npu::Condition> done;
  std::shared_ptr<bool> finished;
};

struct Reports {
  std::mutex mutex;
  npu::Condition changed;
  std::map<const Stream*, std::uint64_t> thread_of;
  std::map<std::uint64_t, std::deque<Report>> waiting;
};

Reports& reports() {
  static auto* all = new Reports;
  return *all;
}

// -- memory

struct Memory {
  std::mutex mutex;
  std::map<void*, DeviceMemory> blocks;
};

Memory& memory() {
  static auto* all = new Memory;
  return *all;
}

void copy_bytes(void* to, std::size_t room, const void* from, std::size_t count) {
  require(to && from, "an address is null");
  require(count <= room, "the destination has room for " + std::to_string(room) + " bytes, " +
                             std::to_string(count) + " are to be copied");
  std::memmove(to, from, count);
}

void check_kind(aclrtMemcpyKind kind) {
  require(kind >= ACL_MEMCPY_HOST_TO_HOST && kind <= ACL_MEMCPY_DEFAULT, "the kind of the copy is unknown");
}

void check_fill(const void* to, std::size_t room, std::size_t count) {
  require(to != nullptr, "the address is null");
  require(count <= room, "more bytes are to be set than there is room for");
}

}  // namespace

int code_of(int engine_code) {
  switch (engine_code) {
    case 11001:
      return ACL_ERROR_INVALID_FILE;
    case 11002:
    case 11005:
      return ACL_ERROR_PARSE_MODEL;
    case 11003:
      return ACL_ERROR_INVALID_FILE_SIZE;
    case 11004:
    case 11006:
      return ACL_ERROR_DESERIALIZE_MODEL;
    case 10020:
      return ACL_ERROR_INVALID_PARAM;
    case 10030:
      return ACL_ERROR_RT_MEMORY_ALLOCATION;
    default:
      return engine_code >= 100000 ? engine_code : ACL_ERROR_GE_FAILURE;
  }
}

aclError report(const char* function, const Failure& failure) noexcept {
  last_message() = std::string(function) + ": " + failure.message;
  return code_of(failure.code);
}

aclError report_current(const char* function) noexcept { return report(function, current_failure()); }

Context& current_context() {
  require(thread_context, "this thread has no context: call aclrtSetDevice or aclrtSetCurrentContext first",
          ACL_ERROR_RT_CONTEXT_NULL);
  return contexts().get(thread_context);
}

Stream& stream_of(aclrtStream handle) { return handle ? streams().get(handle) : current_context().stream; }

}  // namespace npu::acl

using namespace npu::acl;

// -- process

aclError aclInit(const char* configPath) {
  return guard("aclInit", [&] {
    Process& state = process();
    const std::lock_guard lock(state.mutex);
    require(!state.initialised, "it was called before", ACL_ERROR_REPEAT_INITIALIZE);
    if (configPath) {
      std::FILE* file = std::fopen(configPath, "rb");
      require(file != nullptr, std::string("the configuration ") + configPath + " cannot be read",
              ACL_ERROR_INVALID_FILE);
      std::fclose(file);
    }
    npu::limit_instructions();
    state.initialised = true;
    state.finalised = false;
  });
}

aclError aclFinalize(void) {
  return guard("aclFinalize", [&] {
    Process& state = process();
    const std::lock_guard lock(state.mutex);
    require(state.initialised, "aclInit was not called",
            state.finalised ? ACL_ERROR_REPEAT_FINALIZE : ACL_ERROR_UNINITIALIZE);
    state.initialised = false;
    state.finalised = true;
    streams().clear();
    events().clear();
    state.primary.clear();
    contexts().clear();
    thread_context = nullptr;
    clear_models();
  });
}

const char* aclGetRecentErrMsg(void) { return npu::last_message().c_str(); }

aclError aclrtGetVersion(int32_t* majorVersion, int32_t* minorVersion, int32_t* patchVersion) {
  return guard("aclrtGetVersion", [&] {
    require(majorVersion && minorVersion && patchVersion, "an address is null");
    *majorVersion = 1;
    *minorVersion = 0;
    *patchVersion = 0;
  });
}

const char* aclrtGetSocName(void) { return "cpu"; }

void aclAppLog(aclLogLevel logLevel, const char* func, const char* file, uint32_t line, const char* fmt,
               ...) {
  constexpr const char* kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
  if (!fmt || logLevel < ACL_DEBUG || logLevel > ACL_ERROR) return;
  char text[1024];
  std::va_list values;
  va_start(values, fmt);
  std::vsnprintf(text, sizeof text, fmt, values);
  va_end(values);
  std::fprintf(stderr, "[%s] %s:%u %s: %s\n", kNames[logLevel], file ? file : "", line, func ? func : "",
               text);
}

// -- devices and contexts

aclError aclrtSetDevice(int32_t deviceId) {
  return guard("aclrtSetDevice", [&] {
    check_device(deviceId);
    Process& state = process();
    const std::lock_guard lock(state.mutex);
    Context*& own = state.primary[deviceId];
    if (!own) own = contexts().add(std::make_shared<Context>(deviceId));
    thread_context = own;
  });
}

aclError aclrtResetDevice(int32_t deviceId) {
  return guard("aclrtResetDevice", [&] {
    check_device(deviceId);
    std::shared_ptr<Context> old;
    {
      Process& state = process();
      const std::lock_guard lock(state.mutex);
      const auto found = state.primary.find(deviceId);
      if (found == state.primary.end()) return;
      old = contexts().remove(found->second);
      state.primary.erase(found);
    }
    forget_context(*old);
  });
}

aclError aclrtGetDevice(int32_t* deviceId) {
  return guard("aclrtGetDevice", [&] {
    require(deviceId, "the address is null");
    *deviceId = current_context().device;
  });
}

aclError aclrtGetDeviceCount(uint32_t* count) {
  return guard("aclrtGetDeviceCount", [&] {
    require(count, "the address is null");
    *count = static_cast<uint32_t>(npu::Device::count());
  });
}

aclError aclrtGetRunMode(aclrtRunMode* runMode) {
  return guard("aclrtGetRunMode", [&] {
    require(runMode, "the address is null");
    *runMode = ACL_HOST;
  });
}

aclError aclrtSynchronizeDevice(void) {
  return guard("aclrtSynchronizeDevice", [&] {
    synchronise(current_context().stream);
    for (const auto& stream : streams().all()) synchronise(*stream);
  });
}

aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId) {
  return guard("aclrtCreateContext", [&] {
    require(context, "the address is null");
    thread_context = contexts().add(std::make_shared<Context>(check_device(deviceId)));
    *context = thread_context;
  });
}

aclError aclrtDestroyContext(aclrtContext context) {
  return guard("aclrtDestroyContext", [&] { forget_context(*contexts().remove(context)); });
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  return guard("aclrtSetCurrentContext", [&] { thread_context = &contexts().get(context); });
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  return guard("aclrtGetCurrentContext", [&] {
    require(context, "the address is null");
    *context = &current_context();
  });
}

// -- streams and events

aclError aclrtCreateStream(aclrtStream* stream) {
  return guard("aclrtCreateStream", [&] {
    require(stream, "the address is null");
    current_context();
    *stream = streams().add(std::make_shared<npu::Stream>());
  });
}

aclError aclrtDestroyStream(aclrtStream stream) {
  return guard("aclrtDestroyStream", [&] { streams().remove(stream); });
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  return guard("aclrtSynchronizeStream", [&] { synchronise(stream_of(stream)); });
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  return guard("aclrtSynchronizeStreamWithTimeout", [&] {
    require(timeout >= -1, "a time is -1 or more milliseconds");
    if (timeout == -1) return synchronise(stream_of(stream));
    synchronise(stream_of(stream), std::chrono::milliseconds(timeout));
  });
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  return guard("aclrtStreamQuery", [&] {
    require(status, "the address is null");
    *status = stream_of(stream).idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  });
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  return guard("aclrtStreamWaitEvent", [&] { events().get(event).wait_in(stream_of(stream)); });
}

aclError aclrtCreateEvent(aclrtEvent* event) {
  return guard("aclrtCreateEvent", [&] {
    require(event, "the address is null");
    *event = events().add(std::make_shared<npu::Event>());
  });
}

aclError aclrtDestroyEvent(aclrtEvent event) {
  return guard("aclrtDestroyEvent", [&] { events().remove(event); });
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  return guard("aclrtRecordEvent", [&] { events().get(event).record(stream_of(stream)); });
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream) {
  return guard("aclrtResetEvent", [&] {
    stream_of(stream);
    events().get(event).reset();
  });
}

aclError aclrtQueryEvent(aclrtEvent event, aclrtEventStatus* status) {
  return guard("aclrtQueryEvent", [&] {
    require(status, "the address is null");
    *status = events().get(event).reached() ? ACL_EVENT_STATUS_COMPLETE : ACL_EVENT_STATUS_NOT_READY;
  });
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  return guard("aclrtQueryEventStatus", [&] {
    require(status, "the address is null");
    *status = events().get(event).reached() ? ACL_EVENT_RECORDED_STATUS_COMPLETE
                                            : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  });
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  return guard("aclrtSynchronizeEvent", [&] { events().get(event).synchronize(); });
}

aclError aclrtEventElapsedTime(float* ms, aclrtEvent startEvent, aclrtEvent endEvent) {
  return guard("aclrtEventElapsedTime", [&] {
    require(ms, "the address is null");
    const auto start = events().get(startEvent).time(), end = events().get(endEvent).time();
    require(start && end, "an event has not been reached");
    *ms = std::chrono::duration<float, std::milli>(*end - *start).count();
  });
}

// -- functions of the host in streams

aclError aclrtSubscribeReport(uint64_t threadId, aclrtStream stream) {
  return guard("aclrtSubscribeReport", [&] {
    npu::Stream& wanted = stream_of(stream);
    Reports& all = reports();
    const std::lock_guard lock(all.mutex);
    require(all.thread_of.emplace(&wanted, threadId).second, "the stream has a thread already",
            ACL_ERROR_REPEAT_SUBSCRIBE);
    all.waiting[threadId];
    all.changed.notify_all();
  });
}

aclError aclrtUnSubscribeReport(uint64_t threadId, aclrtStream stream) {
  return guard("aclrtUnSubscribeReport", [&] {
    npu::Stream& wanted = stream_of(stream);
    Reports& all = reports();
    const std::lock_guard lock(all.mutex);
    const auto found = all.thread_of.find(&wanted);
    require(found != all.thread_of.end() && found->second == threadId, "the thread is not subscribed",
            ACL_ERROR_STREAM_NOT_SUBSCRIBE);
    all.thread_of.erase(found);
  });
}

aclError aclrtLaunchCallback(aclrtCallback fn, void* userData, aclrtCallbackBlockType blockType,
                             aclrtStream stream) {
  return guard("aclrtLaunchCallback", [&] {
    require(fn, "the function is null");
    npu::Stream& wanted = stream_of(stream);
    Reports& all = reports();
    uint64_t thread = 0;
    {
      const std::lock_guard lock(all.mutex);
      const auto found = all.thread_of.find(&wanted);
      require(found != all.thread_of.end(), "no thread is subscribed", ACL_ERROR_STREAM_NOT_SUBSCRIBE);
      thread = found->second;
    }
    const bool blocks = blockType == ACL_CALLBACK_BLOCK;
    wanted.submit([fn, userData, thread, blocks, &all] {
      Report item{fn, userData, std::make_shared<npu::Condition>(), std::make_shared<bool>(false)};
      std::unique_lock lock(all.mutex);
      all.waiting[thread].push_back(item);
      all.changed.notify_all();
      if (blocks) item.done->wait(lock, [&] { return *item.finished; });
    });
  });
}

aclError aclrtProcessReport(int32_t timeout) {
  return guard("aclrtProcessReport", [&] {
    require(timeout >= -1, "a time is -1 or more milliseconds");
    const auto self = static_cast<uint64_t>(pthread_self());
    Reports& all = reports();
    std::unique_lock lock(all.mutex);
    const auto ready = [&] { return all.waiting.contains(self) && !all.waiting[self].empty(); };
    if (timeout == -1) {
      all.changed.wait(lock, ready);
    } else if (!all.changed.wait_for(lock, std::chrono::milliseconds(timeout), ready)) {
      const bool known = all.waiting.contains(self);
      throw AclError(known ? ACL_ERROR_WAIT_CALLBACK_TIMEOUT : ACL_ERROR_THREAD_NOT_SUBSCRIBE,
                     known ? "there is nothing to call" : "the thread is not subscribed");
    }
    const Report item = all.waiting[self].front();
    all.waiting[self].pop_front();
    lock.unlock();
    item.function(item.data);
    lock.lock();
    *item.finished = true;
    item.done->notify_all();
  });
}

// -- memory

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return guard("aclrtMalloc", [&] {
    require(devPtr, "the address is null");
    *devPtr = nullptr;
    require(size > 0, "no bytes are asked for");
    require(policy >= ACL_MEM_MALLOC_HUGE_FIRST && policy <= ACL_MEM_MALLOC_NORMAL_ONLY_P2P,
            "the policy is unknown");
    npu::Device& device = npu::Device::get(current_context().device);
    npu::DeviceMemory block(device, npu::MemoryUse::Buffers, size, "aclrtMalloc");
    void* address = block.data();
    const std::lock_guard lock(memory().mutex);
    memory().blocks.emplace(address, std::move(block));
    *devPtr = address;
  });
}

aclError aclrtMallocCached(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return aclrtMalloc(devPtr, size, policy);
}

aclError aclrtFree(void* devPtr) {
  return guard("aclrtFree", [&] {
    npu::DeviceMemory block;
    const std::lock_guard lock(memory().mutex);
    const auto found = memory().blocks.find(devPtr);
    require(found != memory().blocks.end(), "this is not memory of aclrtMalloc");
    block = std::move(found->second);
    memory().blocks.erase(found);
  });
}

aclError aclrtMallocHost(void** hostPtr, size_t size) {
  return guard("aclrtMallocHost", [&] {
    require(hostPtr && size > 0, "the address is null, or no bytes are asked for");
    *hostPtr = nullptr;
    if (posix_memalign(hostPtr, 64, size)) throw std::bad_alloc();
  });
}

aclError aclrtFreeHost(void* hostPtr) {
  return guard("aclrtFreeHost", [&] {
    require(hostPtr, "the address is null");
    std::free(hostPtr);
  });
}

aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count) {
  return guard("aclrtMemset", [&] {
    check_fill(devPtr, maxCount, count);
    std::memset(devPtr, value, count);
  });
}

aclError aclrtMemsetAsync(void* devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream) {
  return guard("aclrtMemsetAsync", [&] {
    check_fill(devPtr, maxCount, count);
    stream_of(stream).submit([=] { std::memset(devPtr, value, count); });
  });
}

aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind) {
  return guard("aclrtMemcpy", [&] {
    check_kind(kind);
    copy_bytes(dst, destMax, src, count);
  });
}

aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  return guard("aclrtMemcpyAsync", [&] {
    check_kind(kind);
    require(dst && src && count <= destMax, "an address is null, or the destination is too small");
    stream_of(stream).submit([=] { copy_bytes(dst, destMax, src, count); });
  });
}

aclError aclrtMemFlush(void* devPtr, size_t) {
  return guard("aclrtMemFlush", [&] { require(devPtr, "the address is null"); });
}

aclError aclrtMemInvalidate(void* devPtr, size_t) {
  return guard("aclrtMemInvalidate", [&] { require(devPtr, "the address is null"); });
}

aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  return guard("aclrtGetMemInfo", [&] {
    require(free && total, "an address is null");
    const npu::MemoryInfo info = npu::Device::get(current_context().device).memory();
    *total = info.limit;
    *free = info.limit - std::min(info.current, info.limit);
  });
}
