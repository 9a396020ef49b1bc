// Strided copies: axes are merged and ordered for the target, the last two run as cache-sized tiles.
#include "core/strided.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/half.h"
#include "core/parallel.h"
#include "core/processor.h"

namespace npu {
namespace {

using Types = std::tuple<float, double, Float16, BFloat16, std::int8_t, std::int16_t, std::int32_t,
                         std::int64_t, std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t, bool>;
static_assert(std::tuple_size_v<Types> == kDTypeCount);

using RowFn = void (*)(const char*, std::int64_t, char*, std::int64_t, std::int64_t);

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <class T>
auto widen(T value) {
  if constexpr (kIsHalf<T>) {
    return static_cast<float>(value);
  } else {
    return value;
  }
}

// Out-of-range conversions are undefined in C++; go through the widest integer and saturate there instead.
template <class To, class From>
To convert(From from) {
  const auto value = widen(from);
  using Value = decltype(value);
  if constexpr (kIsHalf<To>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != Value(0);
  } else if constexpr (std::is_floating_point_v<std::remove_const_t<Value>> && std::is_integral_v<To>) {
    constexpr double kTop = std::is_same_v<To, std::uint64_t> ? 0x1p64 : 0x1p63;
    constexpr double kBottom = std::is_same_v<To, std::uint64_t> ? -0x1p63 : -0x1p63;
    const auto wide = static_cast<double>(value);
    if (!(wide >= kBottom && wide < kTop)) {
      return static_cast<To>(std::int64_t{1} << 63);
    }
    if (std::is_same_v<To, std::uint64_t> && wide >= 0x1p63) {
      return static_cast<To>(static_cast<std::uint64_t>(wide));
    }
    return static_cast<To>(static_cast<std::int64_t>(wide));
  } else {
    return static_cast<To>(value);
  }
}

template <class From, class To>
void cast_row(const char* source, std::int64_t source_stride, char* target, std::int64_t target_stride,
              std::int64_t n) {
  if (source_stride == sizeof(From) && target_stride == sizeof(To)) {
    for (std::int64_t i = 0; i < n; ++i) {
      From value;
      std::memcpy(&value, source + i * static_cast<std::int64_t>(sizeof(From)), sizeof(From));
      const To result = convert<To>(value);
      std::memcpy(target + i * static_cast<std::int64_t>(sizeof(To)), &result, sizeof(To));
    }
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    From value;
    std::memcpy(&value, source + i * source_stride, sizeof(From));
    const To result = convert<To>(value);
    std::memcpy(target + i * target_stride, &result, sizeof(To));
  }
}

template <class Word>
void copy_row(const char* source, std::int64_t source_stride, char* target, std::int64_t target_stride,
              std::int64_t n) {
  if (source_stride == sizeof(Word) && target_stride == sizeof(Word)) {
    if (n > 0) std::memcpy(target, source, static_cast<std::size_t>(n) * sizeof(Word));
    return;
  }
  for (std::int64_t i = 0; i < n; ++i)
    std::memcpy(target + i * target_stride, source + i * source_stride, sizeof(Word));
}

template <std::size_t From, std::size_t... To>
constexpr std::array<RowFn, kDTypeCount> casts_from(std::index_sequence<To...>) {
  return {&cast_row<std::tuple_element_t<From, Types>, std::tuple_element_t<To, Types>>...};
}

template <std::size_t... From>
constexpr auto all_casts(std::index_sequence<From...>) {
  return std::array<std::array<RowFn, kDTypeCount>, kDTypeCount>{
      casts_from<From>(std::make_index_sequence<kDTypeCount>())...};
}

constexpr auto kCasts = all_casts(std::make_index_sequence<kDTypeCount>());

#if defined(__x86_64__)
// The processor's own conversion of 16-bit floats, where it has one and the rows are dense.
__attribute__((target("avx,f16c"))) void widen_row(const char* source, std::int64_t source_stride,
                                                   char* target, std::int64_t target_stride, std::int64_t n) {
  if (source_stride != 2 || target_stride != 4) {
    return cast_row<Float16, float>(source, source_stride, target, target_stride, n);
  }
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + 2 * i));
    _mm256_storeu_ps(reinterpret_cast<float*>(target + 4 * i), _mm256_cvtph_ps(half));
  }
  cast_row<Float16, float>(source + 2 * i, 2, target + 4 * i, 4, n - i);
}

__attribute__((target("avx,f16c"))) void narrow_row(const char* source, std::int64_t source_stride,
                                                    char* target, std::int64_t target_stride,
                                                    std::int64_t n) {
  if (source_stride != 4 || target_stride != 2) {
    return cast_row<float, Float16>(source, source_stride, target, target_stride, n);
  }
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 full = _mm256_loadu_ps(reinterpret_cast<const float*>(source + 4 * i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + 2 * i),
                     _mm256_cvtps_ph(full, _MM_FROUND_TO_NEAREST_INT));
  }
  cast_row<float, Float16>(source + 4 * i, 4, target + 2 * i, 2, n - i);
}

#endif

RowFn row_function(DType from, DType to) {
#if defined(__x86_64__)
  static const bool converts_halves = has(Vectors::Avx2);
  if (converts_halves && from == DType::Float16 && to == DType::Float32) return &widen_row;
  if (converts_halves && from == DType::Float32 && to == DType::Float16) return &narrow_row;
#endif
  if (from != to) return kCasts[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  switch (dtype_size(from)) {
    case 1:
      return &copy_row<std::uint8_t>;
    case 2:
      return &copy_row<std::uint16_t>;
    case 4:
      return &copy_row<std::uint32_t>;
    default:
      return &copy_row<std::uint64_t>;
  }
}

constexpr std::int64_t kTile = 32;
constexpr double kByteCycles = 1;

}  // namespace

StridedCopy::StridedCopy(const View& source, const View& target)
    : copy_row_(row_function(source.dtype, target.dtype)) {
  const auto source_size = static_cast<std::int64_t>(dtype_size(source.dtype));
  const auto target_size = static_cast<std::int64_t>(dtype_size(target.dtype));
  std::vector<Axis> axes;
  for (std::size_t i = 0; i < source.dims.size(); ++i) {
    if (source.dims[i] == 1) continue;
    axes.push_back({source.dims[i], source.strides[i] * source_size, target.strides[i] * target_size});
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [](const Axis& a, const Axis& b) { return std::abs(a.target) > std::abs(b.target); });
  std::vector<Axis> merged;
  for (const Axis& axis : axes) {
    if (!merged.empty() && merged.back().source == axis.size * axis.source &&
        merged.back().target == axis.size * axis.target) {
      merged.back() = {merged.back().size * axis.size, axis.source, axis.target};
    } else {
      merged.push_back(axis);
    }
  }
  if (!merged.empty()) {
    columns_ = merged.back();
    merged.pop_back();
  }
  if (!merged.empty()) {
    // The row axis is the one the source runs along, so that a tile uses whole cache lines on both sides.
    auto nearest = std::min_element(merged.begin(), merged.end(), [](const Axis& a, const Axis& b) {
      return std::abs(a.source) < std::abs(b.source);
    });
    tiled_ = std::abs(nearest->source) < std::abs(columns_.source);
    if (!tiled_) nearest = merged.end() - 1;
    rows_ = *nearest;
    merged.erase(nearest);
  }
  outer_ = std::move(merged);
  for (const Axis& axis : outer_) outer_count_ *= axis.size;
}

void StridedCopy::run_plane(const char* source, char* target, std::int64_t rows) const {
  if (!tiled_) {
    for (std::int64_t r = 0; r < rows; ++r) {
      copy_row_(source + r * rows_.source, columns_.source, target + r * rows_.target, columns_.target,
                columns_.size);
    }
    return;
  }
  for (std::int64_t c = 0; c < columns_.size; c += kTile) {
    const std::int64_t n = std::min(kTile, columns_.size - c);
    for (std::int64_t r = 0; r < rows; ++r) {
      copy_row_(source + r * rows_.source + c * columns_.source, columns_.source,
                target + r * rows_.target + c * columns_.target, columns_.target, n);
    }
  }
}

// One unit of work is a group of rows of one plane.
void StridedCopy::run_block(const char* source, char* target, std::int64_t lo, std::int64_t hi) const {
  const std::int64_t groups = (rows_.size + kTile - 1) / kTile;
  for (std::int64_t unit = lo; unit < hi; ++unit) {
    std::int64_t plane = unit / groups;
    const std::int64_t first = unit % groups * kTile;
    const char* from = source + first * rows_.source;
    char* to = target + first * rows_.target;
    for (std::size_t i = outer_.size(); i-- > 0;) {
      const std::int64_t index = plane % outer_[i].size;
      plane /= outer_[i].size;
      from += index * outer_[i].source;
      to += index * outer_[i].target;
    }
    run_plane(from, to, std::min(kTile, rows_.size - first));
  }
}

void StridedCopy::run(const char* source, char* target) const {
  if (outer_count_ == 0 || rows_.size == 0 || columns_.size == 0) return;
  if (outer_count_ == 1 && rows_.size == 1) {
    const std::int64_t bytes = std::max<std::int64_t>(std::abs(columns_.target), 1);
    parallel_for(columns_.size, grain(kByteCycles, bytes), [&](std::int64_t lo, std::int64_t hi) {
      copy_row_(source + lo * columns_.source, columns_.source, target + lo * columns_.target,
                columns_.target, hi - lo);
    });
    return;
  }
  const std::int64_t units = outer_count_ * ((rows_.size + kTile - 1) / kTile);
  const std::int64_t unit_bytes = std::max<std::int64_t>(columns_.size * std::min(kTile, rows_.size) * 4, 1);
  parallel_for(units, grain(kByteCycles, unit_bytes),
               [&](std::int64_t lo, std::int64_t hi) { run_block(source, target, lo, hi); });
}

void convert_row(DType from, DType to, const char* source, std::int64_t source_stride, char* target,
                 std::int64_t target_stride, std::int64_t n) {
  row_function(from, to)(source, source_stride, target, target_stride, n);
}

}  // namespace npu
