#include "core/reclaim.h"

#include <link.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace npu {
namespace {

constexpr std::string_view kReadByCompiles[] = {"libllvmlite.so", "libdnnl.so"};

bool is_read_by_compiles(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return std::any_of(std::begin(kReadByCompiles), std::end(kReadByCompiles),
                     [name](std::string_view library) { return name.substr(0, library.size()) == library; });
}

// Segments that were never writable hold what the file holds; those that the linker relocated are writable in
// the file's headers, even where they are protected later.
int drop_pages(dl_phdr_info* library, std::size_t, void*) {
  if (!is_read_by_compiles(library->dlpi_name)) return 0;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = library->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || segment.p_flags & PF_W) continue;
    const std::uintptr_t begin = (library->dlpi_addr + segment.p_vaddr) / page * page;
    const std::uintptr_t end = library->dlpi_addr + segment.p_vaddr + segment.p_memsz;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
  return 0;
}

}  // namespace

void reclaim() {
  malloc_trim(0);
  dl_iterate_phdr(drop_pages, nullptr);
}

}  // namespace npu
