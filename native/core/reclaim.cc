#include "core/reclaim.h"

#include <fcntl.h>
#include <link.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

namespace npu {
namespace {

constexpr std::string_view kReadByCompiles[] = {"libllvmlite.so", "libdnnl.so"};

// Younger than the headers of many systems.
constexpr std::uint64_t kWithoutReports = 1 << 15;  // UFFD_FEATURE_WP_ASYNC
constexpr int kOfThisProgram = 1;                   // UFFD_USER_MODE_ONLY: needs no privilege

struct Pages {
  std::uintptr_t begin;
  std::uintptr_t end;
};

bool is_read_by_compiles(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return std::any_of(std::begin(kReadByCompiles), std::end(kReadByCompiles),
                     [name](std::string_view library) { return name.substr(0, library.size()) == library; });
}

// Segments that were never writable hold what the file holds; those that the linker relocated are writable in
// the file's headers, even where they are protected later.
int collect_pages(dl_phdr_info* library, std::size_t, void* found) {
  if (!is_read_by_compiles(library->dlpi_name)) return 0;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = library->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || segment.p_flags & PF_W) continue;
    const std::uintptr_t begin = library->dlpi_addr + segment.p_vaddr;
    const std::uintptr_t end = begin + segment.p_memsz;
    static_cast<std::vector<Pages>*>(found)->push_back({begin / page * page, (end + page - 1) / page * page});
  }
  return 0;
}

std::vector<Pages> compilers_pages() {
  std::vector<Pages> found;
  dl_iterate_phdr(collect_pages, &found);
  return found;
}

// The system maps pages ahead of their use, except where a program follows the writes to them; nobody writes
// here, and writes would pass without a report.
bool follow_writes() {
  const long opened = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kOfThisProgram);
  if (opened < 0) return false;
  const int descriptor = static_cast<int>(opened);  // open as long as this is to last
  uffdio_api api = {UFFD_API, kWithoutReports, 0};
  bool done = ioctl(descriptor, UFFDIO_API, &api) == 0;
  for (const Pages& pages : compilers_pages()) {
    uffdio_register range = {{pages.begin, pages.end - pages.begin}, UFFDIO_REGISTER_MODE_WP, 0};
    done = done && ioctl(descriptor, UFFDIO_REGISTER, &range) == 0;
  }
  if (!done) close(descriptor);
  return done;
}

}  // namespace

void reclaim() {
  malloc_trim(0);
  for (const Pages& pages : compilers_pages()) {
    madvise(reinterpret_cast<void*>(pages.begin), pages.end - pages.begin, MADV_DONTNEED);
  }
}

bool map_single_pages() {
  static const bool done = follow_writes();
  return done;
}

}  // namespace npu
