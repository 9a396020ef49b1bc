// scatter_sum: accumulates rows into a zero table, as in gradients of embeddings.
#include <algorithm>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "aicpu/dispatch.h"
#include "core/parallel.h"
#include "core/processor.h"

namespace npu::aicpu {
namespace {

constexpr double kByteCycles = 0.125;  // eight bytes are added in a cycle

// An update: its row and its index.
struct Entry {
  std::int64_t row, position;
};

// Entries sorted by row (stable).
void sort_entries(std::vector<Entry>& entries, std::int64_t rows) {
  const auto count = static_cast<std::int64_t>(entries.size());
  if (count < rows / 8) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return a.row != b.row ? a.row < b.row : a.position < b.position;
    });
    return;
  }
  std::vector<std::int64_t> next(static_cast<std::size_t>(rows) + 1, 0);
  for (const Entry& entry : entries) ++next[static_cast<std::size_t>(entry.row) + 1];
  for (std::size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
  std::vector<Entry> sorted(entries.size());
  for (const Entry& entry : entries) {
    sorted[static_cast<std::size_t>(next[static_cast<std::size_t>(entry.row)]++)] = entry;
  }
  entries = std::move(sorted);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void stream_wide_zeros(char* first, const char* last) {
  for (; first < last; first += 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(first), _mm512_setzero_si512());
}

void stream_zeros(char* first, const char* last) {
  if (has(Vectors::Avx512)) return stream_wide_zeros(first, last);
  for (; first < last; first += 16) _mm_stream_si128(reinterpret_cast<__m128i*>(first), _mm_setzero_si128());
}
#endif

// Non-temporal stores for whole cache lines, plain stores for the ends.
void clear(char* begin, char* end, [[maybe_unused]] bool streamed) {
#if defined(__x86_64__)
  if (streamed && end - begin >= 256) {
    char* const first = begin + (-reinterpret_cast<std::uintptr_t>(begin) & 63);
    char* const last = end - (reinterpret_cast<std::uintptr_t>(end) & 63);
    std::memset(begin, 0, static_cast<std::size_t>(first - begin));
    stream_zeros(first, last);
    std::memset(last, 0, static_cast<std::size_t>(end - last));
    _mm_sfence();
    return;
  }
#endif
  std::memset(begin, 0, static_cast<std::size_t>(end - begin));
}

// Clears the rows without updates.
void clear_others(const Tensor& out, std::int64_t rows, const std::vector<Entry>& entries, std::int64_t lo,
                  std::int64_t hi) {
  const std::size_t row_bytes = out.bytes() / static_cast<std::size_t>(rows);
  // Larger tables are cleared with non-temporal stores.
  const bool streamed = static_cast<std::int64_t>(out.bytes()) >= loops().l2_bytes;
  char* const data = out.as<char>();
  const auto bytes = [&](std::int64_t row) { return data + static_cast<std::size_t>(row) * row_bytes; };
  auto next = std::lower_bound(entries.begin(), entries.end(), lo,
                               [](const Entry& entry, std::int64_t row) { return entry.row < row; });
  for (std::int64_t row = lo; row < hi;) {
    const std::int64_t stop = next == entries.end() ? hi : std::min(next->row, hi);
    if (row < stop) clear(bytes(row), bytes(stop), streamed);
    row = stop + 1;
    while (next != entries.end() && next->row < row) ++next;
  }
}

// The sums of the entries [lo, hi), which hold whole rows; 16-bit floats are rounded once.
template <class T>
void add_up(const Call& call, const std::vector<Entry>& entries, std::int64_t width, std::size_t lo,
            std::size_t hi) {
  constexpr std::int64_t kBlock = 256;  // columns at a time
  const T* updates = call.inputs[1].as<T>();
  decltype(value_of(T{})) sums[kBlock];
  for (std::size_t begin = lo, end; begin < hi; begin = end) {
    const std::int64_t row = entries[begin].row;
    end = begin + 1;
    while (end < hi && entries[end].row == row) ++end;
    for (std::int64_t column = 0; column < width; column += kBlock) {
      const std::int64_t columns = std::min(kBlock, width - column);
      const auto at = [&](std::size_t entry) { return updates + entries[entry].position * width + column; };
      const T* const first = at(begin);
      for (std::int64_t i = 0; i < columns; ++i) sums[i] = value_of(first[i]);
      for (std::size_t entry = begin + 1; entry < end; ++entry) {
        const T* const more = at(entry);
        for (std::int64_t i = 0; i < columns; ++i) {
          sums[i] = static_cast<decltype(value_of(T{}))>(sums[i] + value_of(more[i]));
        }
      }
      T* const out = call.outputs[0].as<T>() + row * width + column;
      for (std::int64_t i = 0; i < columns; ++i) out[i] = static_cast<T>(sums[i]);
    }
  }
}

// The first entry of the row that the entry at `place` belongs to.
std::size_t row_start(const std::vector<Entry>& entries, std::size_t place) {
  while (place > 0 && place < entries.size() && entries[place].row == entries[place - 1].row) --place;
  return place;
}

template <class T>
Status sum(const Call& call, const std::vector<Entry>& entries, std::int64_t rows, std::int64_t width) {
  const auto count = static_cast<std::int64_t>(entries.size());
  const std::int64_t work = rows + count;  // clearing a row costs as much as adding one
  const auto row_bytes = static_cast<std::int64_t>(static_cast<std::size_t>(width) * sizeof(T));
  parallel_for(work, grain(kByteCycles, row_bytes), [&](std::int64_t lo, std::int64_t hi) {
    const auto share = [work](std::int64_t whole, std::int64_t at) { return whole * at / work; };
    clear_others(call.outputs[0], rows, entries, share(rows, lo), share(rows, hi));
    const auto from = static_cast<std::size_t>(share(count, lo));
    const auto to = static_cast<std::size_t>(share(count, hi));
    add_up<T>(call, entries, width, row_start(entries, from), row_start(entries, to));
  });
  return Status::ok();
}

// Inputs: indices (n) and updates (n, …). Negative indices are left out.
Status scatter_sum(Call& call) {
  NPU_RETURN_IF_ERROR(call.expect(2, 1));
  const Tensor& updates = call.inputs[1];
  const Tensor& out = call.outputs[0];
  if (out.dtype != updates.dtype) return Status::error("updates and output must have one element type");
  if (call.inputs[0].rank() != 1 || !updates.rank() || !out.rank() ||
      updates.dims[0] != call.inputs[0].dims[0] ||
      !std::equal(updates.dims.begin() + 1, updates.dims.end(), out.dims.begin() + 1, out.dims.end())) {
    return Status::error("indices, updates and output do not go together");
  }
  if (!out.elements()) return Status::ok();
  const std::int64_t rows = out.dims[0];
  std::vector<std::int64_t> indices;
  NPU_RETURN_IF_ERROR(read_indices(call.inputs[0], indices));
  std::vector<Entry> entries;
  entries.reserve(indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= rows) {
      return Status::error(
          "index " + std::to_string(indices[i]) + " is out of range for " + std::to_string(rows) + " rows",
          "index");
    }
    if (indices[i] >= 0) entries.push_back({indices[i], static_cast<std::int64_t>(i)});
  }
  sort_entries(entries, rows);
  const std::int64_t width = out.elements() / rows;
  return with_type(out.dtype, [&](auto zero) { return sum<decltype(zero)>(call, entries, rows, width); });
}

NPU_AICPU_KERNEL("scatter_sum", scatter_sum);

}  // namespace
}  // namespace npu::aicpu
