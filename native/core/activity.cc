#include "core/activity.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/device.h"
#include "core/errors.h"

namespace npu {
namespace {

void write_name(char* to, std::string_view name) {
  const std::size_t size = std::min(name.size(), ActivityPage::kName - 1);
  std::memcpy(to, name.data(), size);
  to[size] = '\0';
}

InvalidArgument failure(const std::string& path) {
  return InvalidArgument("counters cannot be published in " + path + ": " + std::strerror(errno));
}

}  // namespace

std::atomic<ActivityPage*> Activity::page_{nullptr};

void Activity::publish(const std::string& path) {
  if (page()) return;
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) throw failure(path);
  void* memory = MAP_FAILED;
  errno = posix_fallocate(
      file, 0, sizeof(ActivityPage));  // on a full disk, writing to the page would kill the process
  if (errno == 0) memory = mmap(nullptr, sizeof(ActivityPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) {
    const InvalidArgument why = failure(path);
    unlink(path.c_str());
    throw why;
  }
  auto* made = static_cast<ActivityPage*>(memory);  // zeros
  made->magic.store(ActivityPage::kMagic, std::memory_order_release);
  page_.store(made, std::memory_order_release);
  pthread_atfork(nullptr, nullptr, [] { page_.store(nullptr, std::memory_order_release); });
  for (int i = 0; i < Device::count(); ++i) {
    const MemoryInfo info = Device::get(i).memory();
    set_memory(i, info.current, info.peak, info.limit);
  }
}

void Activity::count_compile(std::string_view name, std::uint64_t nanoseconds) {
  ActivityPage* to = page();
  if (!to) return;
  write_name(to->last_compile, name);
  to->compile_nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
  to->compiles.fetch_add(1, std::memory_order_release);
}

void Activity::set_memory(int device, std::size_t current, std::size_t peak, std::size_t limit) {
  ActivityPage* to = page();
  if (!to || static_cast<std::size_t>(device) >= ActivityPage::kDevices) return;
  ActivityPage::Memory& memory = to->memory[device];
  memory.current.store(current, std::memory_order_relaxed);
  memory.peak.store(peak, std::memory_order_relaxed);
  memory.limit.store(limit, std::memory_order_relaxed);
}

int Activity::add_program(std::string_view name) {
  ActivityPage* to = page();
  if (!to) return -1;
  const std::uint64_t place = to->programs.fetch_add(1, std::memory_order_relaxed);
  const bool last = place >= ActivityPage::kPrograms - 1;
  const std::uint64_t index = last ? ActivityPage::kPrograms - 1 : place;
  write_name(to->program[index].name, last ? "others" : name);
  return static_cast<int>(index);
}

}  // namespace npu
