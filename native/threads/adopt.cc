// The addresses through which oneDNN calls OpenMP, found by its dynamic relocations.
#include "threads/adopt.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <vector>

#include "threads/openmp.h"

namespace npu {
namespace {

// What is needed of a library's dynamic section.
struct Dynamic {
  explicit Dynamic(const link_map& map) : base(map.l_addr) {
    for (const ElfW(Dyn)* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry) {
      const auto address = entry->d_un.d_ptr;
      switch (entry->d_tag) {
        case DT_SYMTAB:
          symbols = reinterpret_cast<const ElfW(Sym)*>(address);
          break;
        case DT_STRTAB:
          names = reinterpret_cast<const char*>(address);
          break;
        case DT_JMPREL:
          tables[0].first = reinterpret_cast<const ElfW(Rela)*>(address);
          break;
        case DT_PLTRELSZ:
          tables[0].count = entry->d_un.d_val / sizeof(ElfW(Rela));
          break;
        case DT_RELA:
          tables[1].first = reinterpret_cast<const ElfW(Rela)*>(address);
          break;
        case DT_RELASZ:
          tables[1].count = entry->d_un.d_val / sizeof(ElfW(Rela));
          break;
        default:
          break;
      }
    }
  }

  struct Table {
    const ElfW(Rela) * first = nullptr;
    std::size_t count = 0;
  };

  ElfW(Addr) base;
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  Table tables[2];
};

// A place that holds the address of a function of another library.
struct Slot {
  std::string_view name;
  void** place;
};

bool of_openmp(std::string_view name) {
  return name.starts_with("GOMP_") || name.starts_with("omp_") || name.starts_with("__kmpc_");
}

std::vector<Slot> openmp_slots(const Dynamic& library) {
  std::vector<Slot> slots;
  for (const Dynamic::Table& table : library.tables) {
    for (std::size_t i = 0; i < table.count; ++i) {
      const ElfW(Rela) & entry = table.first[i];
      const auto type = ELF64_R_TYPE(entry.r_info);
      if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) continue;
      const ElfW(Sym) & symbol = library.symbols[ELF64_R_SYM(entry.r_info)];
      const std::string_view name = library.names + symbol.st_name;
      if (of_openmp(name)) slots.push_back({name, reinterpret_cast<void**>(library.base + entry.r_offset)});
    }
  }
  return slots;
}

void* ours(std::string_view name) {
  for (const EntryPoint& point : openmp_entry_points()) {
    if (point.name == name) return point.function;
  }
  return nullptr;
}

struct Range {
  std::uintptr_t begin = 0, end = 0;
};

// The part of a library that the loader has made read-only after relocation.
Range sealed(const link_map& map) {
  struct Search {
    ElfW(Addr) base;
    Range found;
  } search{map.l_addr, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        if (info->dlpi_addr != wanted.base) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr) & part = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
          if (part.p_type == PT_GNU_RELRO) wanted.found = {begin, begin + part.p_memsz};
        }
        return 1;
      },
      &search);
  return search.found;
}

bool write(const Slot& slot, void* function, const Range& sealed) {
  const auto place = reinterpret_cast<std::uintptr_t>(slot.place);
  const bool protect = place >= sealed.begin && place < sealed.end;
  const auto size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  void* page = reinterpret_cast<void*>(place / size * size);
  if (protect && mprotect(page, size, PROT_READ | PROT_WRITE) != 0) return false;
  *slot.place = function;
  if (protect) mprotect(page, size, PROT_READ);
  return true;
}

std::string adopted() {
  Dl_info info{};
  link_map* map = nullptr;
  const auto inside = reinterpret_cast<void*>(&dnnl_primitive_execute);
  if (!dladdr1(inside, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) || !map) return "its library";
  const auto keep = [&](std::string_view reason) {
    void* library = dlopen(map->l_name, RTLD_NOW | RTLD_NOLOAD);
    void* found = library ? dlsym(library, "omp_set_num_threads") : nullptr;
    other_set_num_threads = reinterpret_cast<void (*)(int)>(found);
    return std::string(reason);
  };
  const std::vector<Slot> slots = openmp_slots(Dynamic(*map));
  for (const Slot& slot : slots) {
    if (!ours(slot.name)) return keep(slot.name);
  }
  const Range protect = sealed(*map);
  for (const Slot& slot : slots) {
    if (!write(slot, ours(slot.name), protect)) return keep("write access");
  }
  return "npu";
}

std::string threads;

}  // namespace

void adopt_onednn() { threads = adopted(); }
const std::string& onednn_threads() { return threads; }

}  // namespace npu
