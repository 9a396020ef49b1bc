#include "cuda/device.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/errors.h"

namespace npu::cuda {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kLog = 8192;
constexpr int kErrorLog = 5;
constexpr int kErrorLogBytes = 6;
constexpr int kRelaxed = 2;
constexpr int kMostShared = 8;
constexpr unsigned kNonBlocking = 1;

std::size_t rounded(std::size_t bytes) {
  return std::max<std::size_t>((bytes + kAlignment - 1) / kAlignment * kAlignment, kAlignment);
}

}  // namespace

int Device::count() {
  int count = 0;
  check(cuda::driver().device_count(&count), "cuDeviceGetCount");
  return count;
}

Device& Device::get(int index) {
  static std::mutex mutex;
  // Never destroyed: frameworks free tensors when the process ends.
  static auto& devices = *new std::map<std::pair<const Driver*, int>, std::unique_ptr<Device>>();
  const Driver& found_by = cuda::driver();
  const int all = count();
  if (index < 0 || index >= all) {
    throw InvalidArgument("there is no GPU " + std::to_string(index) + ": the machine has " +
                          std::to_string(all));
  }
  const std::scoped_lock lock(mutex);
  auto& found = devices[{&found_by, index}];
  if (!found) found.reset(new Device(found_by, index));
  return *found;
}

Device::Device(const Driver& driver, int index) : driver_(driver), index_(index) {
  check(driver_.device_get(&ordinal_, index), "cuDeviceGet");
  check(driver_.context_retain(&context_, ordinal_), "cuDevicePrimaryCtxRetain");
}

std::string Device::name() const {
  std::array<char, 256> text{};
  check(driver_.device_name(text.data(), text.size() - 1, ordinal_), "cuDeviceGetName");
  return text.data();
}

int Device::attribute(int which) const {
  int value = 0;
  check(driver_.device_attribute(&value, which, ordinal_), "cuDeviceGetAttribute");
  return value;
}

std::string Device::architecture() const {
  return "sm_" + std::to_string(attribute(kCapabilityMajor)) + std::to_string(attribute(kCapabilityMinor));
}

void Device::use() const { check(driver_.context_set(context_), "cuCtxSetCurrent"); }

void Device::synchronize() const {
  use();
  check(driver_.context_synchronize(), "cuCtxSynchronize");
}

Address Device::allocate(std::size_t bytes, std::string_view requester) {
  const std::size_t size = rounded(bytes);
  use();
  const std::scoped_lock lock(mutex_);
  const auto out_of_memory = [&](std::size_t available) {
    return OutOfDeviceMemory(std::string(requester), size, available);
  };
  if (usage_.limit != 0 && usage_.current + size > usage_.limit)
    throw out_of_memory(usage_.limit - usage_.current);
  Address address = 0;
  const auto found = pool_.find(size);
  if (found != pool_.end()) {
    address = found->second;
    pool_.erase(found);
    usage_.pooled -= size;
    check(driver_.context_synchronize(), "cuCtxSynchronize");  // who freed it need not have waited
  } else {
    Result result = driver_.allocate(&address, size);
    if (result == kOutOfMemory && !pool_.empty()) {  // released blocks of other sizes may make room
      for (const auto& [block, at] : pool_) driver_.release(at);
      pool_.clear();
      usage_.pooled = 0;
      result = driver_.allocate(&address, size);
    }
    if (result == kOutOfMemory) {
      std::size_t free = 0, total = 0;
      check(driver_.memory_info(&free, &total), "cuMemGetInfo");
      throw out_of_memory(free);
    }
    check(result, "cuMemAlloc");
  }
  usage_.current += size;
  usage_.peak = std::max(usage_.peak, usage_.current);
  return address;
}

void Device::release(Address address, std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  const std::scoped_lock lock(mutex_);
  pool_.emplace(size, address);
  usage_.pooled += size;
  usage_.current -= size;
}

void Device::trim() {
  use();
  const std::scoped_lock lock(mutex_);
  for (const auto& [size, address] : pool_) check(driver_.release(address), "cuMemFree");
  pool_.clear();
  usage_.pooled = 0;
}

void Device::set_limit(std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  usage_.limit = bytes;
}

Usage Device::usage() const {
  use();
  const std::scoped_lock lock(mutex_);
  Usage now = usage_;
  check(driver_.memory_info(&now.free, &now.total), "cuMemGetInfo");
  return now;
}

Memory::Memory(Device& device, std::size_t bytes, std::string_view requester)
    : device_(device), bytes_(bytes), address_(device.allocate(bytes, requester)) {}

Memory::~Memory() { device_.release(address_, bytes_); }

PinnedMemory::PinnedMemory(Device& device, std::size_t bytes) : device_(device), bytes_(bytes) {
  device.use();
  const Result result = device.driver().allocate_host(&data_, std::max<std::size_t>(bytes, 1));
  if (result == kOutOfMemory) throw OutOfDeviceMemory("pinned memory of the host", bytes, 0);
  check(result, "cuMemAllocHost");
}

PinnedMemory::~PinnedMemory() { device_.driver().release_host(data_); }

Stream::Stream(Device& device) : device_(device) {
  device.use();
  check(device_.driver().stream_create(&handle_, kNonBlocking), "cuStreamCreate");
}

Stream::Stream(Device& device, StreamHandle borrowed) : device_(device), handle_(borrowed), owned_(false) {}

Stream::~Stream() {
  if (owned_) device_.driver().stream_destroy(handle_);
}

bool Stream::idle() const {
  device_.use();
  const Result result = device_.driver().stream_query(handle_);
  if (result != kNotReady) check(result, "cuStreamQuery");
  return result == 0;
}

void Stream::copy(Address to, Address from, std::size_t bytes) const {
  device_.use();
  check(device_.driver().copy_anywhere(to, from, bytes, handle_), "cuMemcpyAsync");
}

void Stream::upload(Address to, const void* from, std::size_t bytes) const {
  device_.use();
  check(device_.driver().copy_to_device(to, from, bytes, handle_), "cuMemcpyHtoDAsync");
}

void Stream::download(void* to, Address from, std::size_t bytes) const {
  device_.use();
  check(device_.driver().copy_to_host(to, from, bytes, handle_), "cuMemcpyDtoHAsync");
}

void Stream::synchronize() const {
  device_.use();
  check(device_.driver().stream_synchronize(handle_), "cuStreamSynchronize");
}

void Stream::wait(const Event& event) const {
  device_.use();
  check(device_.driver().stream_wait(handle_, event.handle(), 0), "cuStreamWaitEvent");
}

Event::Event(Device& device) : device_(device) {
  device.use();
  check(device_.driver().event_create(&handle_, 0), "cuEventCreate");
}

Event::~Event() { device_.driver().event_destroy(handle_); }

void Event::record(const Stream& stream) {
  device_.use();
  check(device_.driver().event_record(handle_, stream.handle()), "cuEventRecord");
}

void Event::synchronize() const {
  device_.use();
  check(device_.driver().event_synchronize(handle_), "cuEventSynchronize");
}

bool Event::complete() const {
  device_.use();
  const Result result = device_.driver().event_query(handle_);
  if (result != kNotReady) check(result, "cuEventQuery");
  return result == 0;
}

float Event::milliseconds_since(const Event& begin) const {
  float value = 0;
  check(device_.driver().event_elapsed(&value, begin.handle_, handle_), "cuEventElapsedTime");
  return value;
}

Module::Module(Device& device, const std::string& image) : device_(device) {
  device.use();
  std::string log(kLog, '\0');
  std::array<int, 2> options = {kErrorLog, kErrorLogBytes};
  std::array<void*, 2> values = {log.data(), reinterpret_cast<void*>(log.size())};
  const Result result =
      device_.driver().module_load(&handle_, image.c_str(), options.size(), options.data(), values.data());
  if (result != 0 && log[0] != '\0')
    throw CudaError(std::string("the driver refuses a kernel: ") + log.c_str());
  check(result, "cuModuleLoadDataEx");
}

Module::~Module() { device_.driver().module_unload(handle_); }

FunctionHandle Module::function(const std::string& name) const {
  FunctionHandle function = nullptr;
  device_.use();
  check(device_.driver().module_function(&function, handle_, name.c_str()),
        ("cuModuleGetFunction of " + name).c_str());
  return function;
}

void launch(const Stream& stream, FunctionHandle function, unsigned blocks, unsigned threads,
            const std::vector<Address>& arguments, unsigned shared) {
  std::vector<Address> values = arguments;
  std::vector<void*> parameters;
  for (Address& value : values) parameters.push_back(&value);
  parameters.push_back(nullptr);
  const Driver& driver = stream.device().driver();
  stream.device().use();
  if (shared > 0) {
    check(driver.function_attribute(function, kMostShared, static_cast<int>(shared)), "cuFuncSetAttribute");
  }
  check(driver.launch(function, blocks, 1, 1, threads, 1, 1, shared, stream.handle(), parameters.data(),
                      nullptr),
        "cuLaunchKernel");
}

void Graph::begin(const Stream& stream) {
  stream.device().use();
  check(stream.device().driver().capture_begin(stream.handle(), kRelaxed), "cuStreamBeginCapture");
}

Graph::Graph(const Stream& stream) : device_(stream.device()) {
  GraphHandle graph = nullptr;
  device_.use();
  check(device_.driver().capture_end(stream.handle(), &graph), "cuStreamEndCapture");
  const Result counted = device_.driver().graph_nodes(graph, nullptr, &nodes_);
  const Result made = counted == 0 ? device_.driver().graph_instantiate(&exec_, graph, 0) : counted;
  device_.driver().graph_destroy(graph);
  check(made, "cuGraphInstantiate");
}

Graph::~Graph() { device_.driver().graph_exec_destroy(exec_); }

void Graph::launch(const Stream& stream) const {
  stream.device().use();
  check(device_.driver().graph_launch(exec_, stream.handle()), "cuGraphLaunch");
}

}  // namespace npu::cuda
