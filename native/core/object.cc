// ELF64 relocatable objects: parsing with every bound checked, layout, relocation, protection.
#include "core/object.h"

#include <elf.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "core/errors.h"

namespace npu {
namespace {

#if defined(__aarch64__)
constexpr std::size_t kPage = 65536;  // the largest of its kernels
constexpr auto kMachine = EM_AARCH64;
constexpr const char* kMachineName = "AArch64";
#else
constexpr std::size_t kPage = 4096;
constexpr auto kMachine = EM_X86_64;
constexpr const char* kMachineName = "x86-64";
#endif
constexpr std::size_t kMaxImage = std::size_t{64} << 20;
constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kStubSize = 16;  // a jump, and the 8-byte address that it goes to

// Functions that the compiler may call for memory operations even in code without calls.
struct Import {
  std::string_view name;
  void* address;
};
const std::array<Import, 3> kImports = {{
    {"memcpy",
     reinterpret_cast<void*>(static_cast<void* (*)(void*, const void*, std::size_t)>(&std::memcpy))},
    {"memmove",
     reinterpret_cast<void*>(static_cast<void* (*)(void*, const void*, std::size_t)>(&std::memmove))},
    {"memset", reinterpret_cast<void*>(static_cast<void* (*)(void*, int, std::size_t)>(&std::memset))},
}};

// The protection classes in layout order.
enum class Region { Code, ReadOnly, Data };
constexpr std::size_t kRegions = 3;

// Sanitises a name from untrusted bytes for a message.
std::string printable(std::string_view name) {
  constexpr std::size_t kLongest = 80;
  std::string text(name.substr(0, kLongest));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

std::size_t align_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

class ObjectLoader {
 public:
  ObjectLoader(std::span<const std::byte> bytes, const std::string& symbol)
      : bytes_(bytes), symbol_(symbol) {}

  std::shared_ptr<KernelObject> load() {
    read_header();
    read_symbols();
    collect_relocations();
    lay_out();
    map();
    copy_sections();
    write_stubs();
    for (const Relocation& relocation : relocations_) relocate(relocation);
    protect();
    image_->entry_ = reinterpret_cast<KernelFn>(base() + entry_offset());
    image_->symbol_ = symbol_;
    return image_;
  }

 private:
  struct Relocation {
    std::size_t section;
    std::uint64_t offset;
    std::uint32_t type;
    std::uint32_t symbol;
    std::int64_t addend;
  };

  [[noreturn]] void fail(const std::string& why) const {
    throw ObjectError("kernel object '" + symbol_ + "': " + why);
  }

  template <class T>
  T read(std::uint64_t offset) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) fail("truncated");
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  void read_header() {
    const auto header = read<Elf64_Ehdr>(0);
    const bool sound = std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 &&
                       header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_ident[EI_DATA] == ELFDATA2LSB &&
                       header.e_machine == kMachine;
    if (!sound) fail(std::string("not an ELF object of ") + kMachineName);
    if (header.e_type != ET_REL) fail("not a relocatable object");
    if (header.e_shentsize != sizeof(Elf64_Shdr)) fail("unexpected section header size");
    if (header.e_shnum == 0 || header.e_shnum >= SHN_LORESERVE) fail("unexpected number of sections");
    for (std::size_t i = 0; i < header.e_shnum; ++i) {
      const std::uint64_t step = i * sizeof(Elf64_Shdr);
      if (header.e_shoff > bytes_.size()) fail("section table outside the file");
      sections_.push_back(read<Elf64_Shdr>(header.e_shoff + step));
      check_section(sections_.back());
    }
  }

  void check_section(const Elf64_Shdr& section) const {
    if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL) {
      if (section.sh_offset > bytes_.size() || bytes_.size() - section.sh_offset < section.sh_size) {
        fail("section outside the file");
      }
    }
    if (!(section.sh_flags & SHF_ALLOC)) return;
    if (section.sh_size > kMaxImage) fail("section too large");
    if (section.sh_flags & SHF_TLS) fail("thread-local data is not supported");
    const std::uint64_t alignment = std::max<std::uint64_t>(section.sh_addralign, 1);
    if (alignment > kPage || (alignment & (alignment - 1))) fail("unexpected section alignment");
    if ((section.sh_flags & SHF_WRITE) && (section.sh_flags & SHF_EXECINSTR)) {
      fail("a section is both writable and executable");
    }
  }

  void read_symbols() {
    const auto is_table = [](const Elf64_Shdr& section) { return section.sh_type == SHT_SYMTAB; };
    const auto table = std::find_if(sections_.begin(), sections_.end(), is_table);
    if (table == sections_.end()) fail("no symbol table");
    if (std::find_if(table + 1, sections_.end(), is_table) != sections_.end()) fail("two symbol tables");
    if (table->sh_link >= sections_.size()) fail("symbol names are missing");
    const Elf64_Shdr& names = sections_[table->sh_link];
    if (names.sh_type != SHT_STRTAB) fail("symbol names are missing");
    names_ = std::string_view(reinterpret_cast<const char*>(bytes_.data()) + names.sh_offset, names.sh_size);
    if (names_.empty() || names_.back() != '\0') fail("symbol names are not terminated");
    symbol_table_ = static_cast<std::size_t>(table - sections_.begin());
    const std::size_t count = table->sh_size / sizeof(Elf64_Sym);
    for (std::size_t i = 0; i < count; ++i) {
      symbols_.push_back(read<Elf64_Sym>(table->sh_offset + i * sizeof(Elf64_Sym)));
      if (symbols_.back().st_name >= names_.size()) fail("symbol name outside the names");
    }
    stubs_.assign(count, kNowhere);
    slots_.assign(count, kNowhere);
  }

  std::string_view name_of(std::size_t symbol) const { return names_.data() + symbols_[symbol].st_name; }

  bool loaded(std::size_t section) const { return sections_[section].sh_flags & SHF_ALLOC; }

  void collect_relocations() {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_REL) fail("relocations without addends are not supported");
      if (section.sh_type != SHT_RELA) continue;
      if (section.sh_info >= sections_.size()) fail("relocations of a section that does not exist");
      if (!loaded(section.sh_info)) continue;
      if (section.sh_link != symbol_table_) fail("relocations refer to another symbol table");
      if (sections_[section.sh_info].sh_type == SHT_NOBITS) fail("relocations of a section without contents");
      for (std::size_t i = 0; i < section.sh_size / sizeof(Elf64_Rela); ++i) {
        add_relocation(section.sh_info, read<Elf64_Rela>(section.sh_offset + i * sizeof(Elf64_Rela)));
      }
    }
  }

  void add_relocation(std::size_t section, const Elf64_Rela& entry) {
    const auto type = static_cast<std::uint32_t>(ELF64_R_TYPE(entry.r_info));
    const auto symbol = static_cast<std::uint32_t>(ELF64_R_SYM(entry.r_info));
    if (type == 0) return;
    const std::size_t width = width_of(type);
    const std::uint64_t size = sections_[section].sh_size;
    if (entry.r_offset > size || size - entry.r_offset < width) fail("relocation outside its section");
    if (symbol >= symbols_.size()) fail("relocation against a symbol that does not exist");
    check_symbol(symbol);
    if (is_import(symbol)) need_stub(symbol);
    if (uses_slot(type)) need_slot(symbol);
    low_addresses_ |= needs_low_address(type);
    relocations_.push_back({section, entry.r_offset, type, symbol, entry.r_addend});
  }

#if defined(__aarch64__)
  std::size_t width_of(std::uint32_t type) const {
    switch (type) {
      case R_AARCH64_ABS64:
      case R_AARCH64_PREL64:
        return 8;
      case R_AARCH64_PREL32:
      case R_AARCH64_ADR_PREL_PG_HI21:
      case R_AARCH64_ADD_ABS_LO12_NC:
      case R_AARCH64_LDST8_ABS_LO12_NC:
      case R_AARCH64_LDST16_ABS_LO12_NC:
      case R_AARCH64_LDST32_ABS_LO12_NC:
      case R_AARCH64_LDST64_ABS_LO12_NC:
      case R_AARCH64_LDST128_ABS_LO12_NC:
      case R_AARCH64_CALL26:
      case R_AARCH64_JUMP26:
      case R_AARCH64_ADR_GOT_PAGE:
      case R_AARCH64_LD64_GOT_LO12_NC:
        return 4;
      default:
        fail("relocation type " + std::to_string(type) + " is not supported");
    }
  }

  static bool uses_slot(std::uint32_t type) {
    return type == R_AARCH64_ADR_GOT_PAGE || type == R_AARCH64_LD64_GOT_LO12_NC;
  }

  static bool needs_low_address(std::uint32_t) { return false; }
#else
  std::size_t width_of(std::uint32_t type) const {
    switch (type) {
      case R_X86_64_64:
      case R_X86_64_PC64:
        return 8;
      case R_X86_64_PC32:
      case R_X86_64_PLT32:
      case R_X86_64_32:
      case R_X86_64_32S:
      case R_X86_64_GOTPCREL:
      case R_X86_64_GOTPCRELX:
      case R_X86_64_REX_GOTPCRELX:
        return 4;
      default:
        fail("relocation type " + std::to_string(type) + " is not supported");
    }
  }

  static bool uses_slot(std::uint32_t type) {
    return type == R_X86_64_GOTPCREL || type == R_X86_64_GOTPCRELX || type == R_X86_64_REX_GOTPCRELX;
  }

  static bool needs_low_address(std::uint32_t type) { return type == R_X86_64_32 || type == R_X86_64_32S; }
#endif

  bool is_import(std::size_t symbol) const { return symbols_[symbol].st_shndx == SHN_UNDEF; }

  const Import* import_of(std::size_t symbol) const {
    const std::string_view name = name_of(symbol);
    for (const Import& import : kImports) {
      if (import.name == name) return &import;
    }
    return nullptr;
  }

  void check_symbol(std::size_t symbol) const {
    const Elf64_Sym& entry = symbols_[symbol];
    if (is_import(symbol)) {
      if (!import_of(symbol)) fail("undefined symbol '" + printable(name_of(symbol)) + "'");
      return;
    }
    if (entry.st_shndx >= sections_.size()) fail("symbol in a section that does not exist");
    if (!loaded(entry.st_shndx)) fail("symbol in a section that is not loaded");
    if (entry.st_value > sections_[entry.st_shndx].sh_size) fail("symbol outside its section");
  }

  void need_stub(std::size_t symbol) {
    if (stubs_[symbol] == kNowhere) stubs_[symbol] = stub_count_++;
  }

  void need_slot(std::size_t symbol) {
    if (slots_[symbol] == kNowhere) slots_[symbol] = slot_count_++;
  }

  static Region region_of(const Elf64_Shdr& section) {
    if (section.sh_flags & SHF_EXECINSTR) return Region::Code;
    return section.sh_flags & SHF_WRITE ? Region::Data : Region::ReadOnly;
  }

  void lay_out() {
    places_.assign(sections_.size(), kNowhere);
    std::size_t end = 0;
    for (std::size_t region = 0; region < kRegions; ++region) {
      end = align_up(end, kPage);
      starts_[region] = end;
      for (std::size_t i = 0; i < sections_.size(); ++i) {
        if (!loaded(i) || region_of(sections_[i]) != static_cast<Region>(region)) continue;
        end = align_up(end, std::max<std::size_t>(sections_[i].sh_addralign, 1));
        places_[i] = end;
        end += sections_[i].sh_size;
        if (end > kMaxImage) fail("image too large");
      }
      if (region == static_cast<std::size_t>(Region::Code)) {
        stub_base_ = align_up(end, kStubSize);
        end = stub_base_ + stub_count_ * kStubSize;
      } else if (region == static_cast<std::size_t>(Region::ReadOnly)) {
        slot_base_ = align_up(end, sizeof(void*));
        end = slot_base_ + slot_count_ * sizeof(void*);
      }
      if (end > kMaxImage) fail("image too large");
    }
    starts_[kRegions] = align_up(end, kPage);
    if (starts_[kRegions] == 0) fail("no code");
  }

  void map() {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(__x86_64__)
    if (low_addresses_) flags |= MAP_32BIT;
#endif
    void* memory = mmap(nullptr, starts_[kRegions], PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) fail("memory for the code could not be mapped");
    image_ = std::shared_ptr<KernelObject>(new KernelObject(memory, starts_[kRegions]));
  }

  char* base() const { return static_cast<char*>(image_->base_); }

  void copy_sections() {
    for (std::size_t i = 0; i < sections_.size(); ++i) {
      if (places_[i] == kNowhere || sections_[i].sh_type == SHT_NOBITS) continue;
      if (sections_[i].sh_size == 0) continue;
      std::memcpy(base() + places_[i], bytes_.data() + sections_[i].sh_offset, sections_[i].sh_size);
    }
  }

  void write_stubs() {
#if defined(__aarch64__)
    constexpr std::uint32_t kJump[2] = {0x58000050, 0xd61f0200};  // ldr x16, [pc + 8]; br x16
#else
    constexpr unsigned char kJump[6] = {0xff, 0x25, 0, 0, 0, 0};  // jmp *[rip + 0]
#endif
    for (std::size_t i = 0; i < symbols_.size(); ++i) {
      if (stubs_[i] == kNowhere) continue;
      char* stub = base() + stub_base_ + stubs_[i] * kStubSize;
      const void* target = import_of(i)->address;
      std::memcpy(stub, kJump, sizeof(kJump));
      std::memcpy(stub + sizeof(kJump), &target, sizeof(target));
    }
    for (std::size_t i = 0; i < symbols_.size(); ++i) {
      if (slots_[i] == kNowhere) continue;
      const std::uint64_t target = address_of(i);
      std::memcpy(base() + slot_base_ + slots_[i] * sizeof(void*), &target, sizeof(target));
    }
  }

  std::uint64_t address_of(std::size_t symbol) const {
    if (stubs_[symbol] != kNowhere) {
      return reinterpret_cast<std::uint64_t>(base() + stub_base_ + stubs_[symbol] * kStubSize);
    }
    const Elf64_Sym& entry = symbols_[symbol];
    return reinterpret_cast<std::uint64_t>(base() + places_[entry.st_shndx]) + entry.st_value;
  }

  void relocate(const Relocation& relocation) {
    char* place = base() + places_[relocation.section] + relocation.offset;
    std::uint64_t target = address_of(relocation.symbol);
    if (uses_slot(relocation.type)) {
      target =
          reinterpret_cast<std::uint64_t>(base() + slot_base_ + slots_[relocation.symbol] * sizeof(void*));
    }
    const std::uint64_t value = target + static_cast<std::uint64_t>(relocation.addend);
    apply(relocation.type, place, value);
  }

#if defined(__aarch64__)
  static std::uint32_t instruction(const char* place) {
    std::uint32_t word;
    std::memcpy(&word, place, sizeof(word));
    return word;
  }

  // The last twelve bits of an address, in units of an access, in the immediate of an instruction.
  static void store_low(char* place, std::uint64_t value, unsigned shift) {
    const auto low = static_cast<std::uint32_t>(value & 0xfff) >> shift;
    store(place, instruction(place) | low << 10);
  }

  void apply(std::uint32_t type, char* place, std::uint64_t value) const {
    const auto here = reinterpret_cast<std::uint64_t>(place);
    const auto relative = static_cast<std::int64_t>(value - here);
    switch (type) {
      case R_AARCH64_ABS64:
        return store(place, value);
      case R_AARCH64_PREL64:
        return store(place, relative);
      case R_AARCH64_PREL32:
        return store_signed(place, value - here);
      case R_AARCH64_ADR_PREL_PG_HI21:
      case R_AARCH64_ADR_GOT_PAGE: {
        const auto pages = static_cast<std::int64_t>((value & ~0xfffull) - (here & ~0xfffull)) >> 12;
        if (pages < -(1 << 20) || pages >= 1 << 20) fail("relocation out of range");
        const auto bits = static_cast<std::uint32_t>(pages);
        return store(place, instruction(place) | (bits & 3) << 29 | (bits >> 2 & 0x7ffff) << 5);
      }
      case R_AARCH64_CALL26:
      case R_AARCH64_JUMP26:
        if (relative < -(1 << 27) || relative >= 1 << 27) fail("relocation out of range");
        return store(place, instruction(place) | (static_cast<std::uint32_t>(relative >> 2) & 0x3ffffff));
      case R_AARCH64_LDST16_ABS_LO12_NC:
        return store_low(place, value, 1);
      case R_AARCH64_LDST32_ABS_LO12_NC:
        return store_low(place, value, 2);
      case R_AARCH64_LDST64_ABS_LO12_NC:
      case R_AARCH64_LD64_GOT_LO12_NC:
        return store_low(place, value, 3);
      case R_AARCH64_LDST128_ABS_LO12_NC:
        return store_low(place, value, 4);
      default:
        return store_low(place, value, 0);
    }
  }
#else
  void apply(std::uint32_t type, char* place, std::uint64_t value) const {
    const std::uint64_t relative = value - reinterpret_cast<std::uint64_t>(place);
    switch (type) {
      case R_X86_64_64:
        return store(place, value);
      case R_X86_64_PC64:
        return store(place, relative);
      case R_X86_64_32:
        if (value > std::numeric_limits<std::uint32_t>::max()) fail("relocation out of range");
        return store(place, static_cast<std::uint32_t>(value));
      case R_X86_64_32S:
        return store_signed(place, value);
      default:
        return store_signed(place, relative);
    }
  }
#endif

  template <class T>
  static void store(char* place, T value) {
    std::memcpy(place, &value, sizeof(value));
  }

  void store_signed(char* place, std::uint64_t value) const {
    const auto wide = static_cast<std::int64_t>(value);
    if (wide != static_cast<std::int32_t>(wide)) fail("relocation out of range");
    store(place, static_cast<std::int32_t>(wide));
  }

  void protect() {
    constexpr std::array<int, kRegions> kAccess = {PROT_READ | PROT_EXEC, PROT_READ, PROT_READ | PROT_WRITE};
    for (std::size_t region = 0; region < kRegions; ++region) {
      const std::size_t size = align_up(starts_[region + 1] - starts_[region], kPage);
      if (size && mprotect(base() + starts_[region], size, kAccess[region]) != 0) {
        fail("the code could not be protected");
      }
    }
    __builtin___clear_cache(base(), base() + starts_[kRegions]);
  }

  std::size_t entry_offset() const {
    for (std::size_t i = 0; i < symbols_.size(); ++i) {
      const Elf64_Sym& entry = symbols_[i];
      if (name_of(i) != symbol_ || is_import(i)) continue;
      check_symbol(i);
      if (!(sections_[entry.st_shndx].sh_flags & SHF_EXECINSTR)) fail("the symbol is not a function");
      if (entry.st_value >= sections_[entry.st_shndx].sh_size) fail("the symbol is outside its section");
      return places_[entry.st_shndx] + entry.st_value;
    }
    fail("the symbol is not defined");
  }

  std::span<const std::byte> bytes_;
  std::string symbol_;
  std::vector<Elf64_Shdr> sections_;
  std::vector<Elf64_Sym> symbols_;
  std::string_view names_;
  std::size_t symbol_table_ = 0;
  std::vector<Relocation> relocations_;
  std::vector<std::size_t> places_;         // offset of each loaded section
  std::vector<std::size_t> stubs_, slots_;  // for each symbol: its stub, its address slot
  std::size_t stub_count_ = 0, slot_count_ = 0, stub_base_ = 0, slot_base_ = 0;
  std::array<std::size_t, kRegions + 1> starts_{};
  bool low_addresses_ = false;
  std::shared_ptr<KernelObject> image_;
};

std::shared_ptr<KernelObject> KernelObject::load(std::span<const std::byte> bytes,
                                                 const std::string& symbol) {
  return ObjectLoader(bytes, symbol).load();
}

KernelObject::~KernelObject() { munmap(base_, size_); }

}  // namespace npu
