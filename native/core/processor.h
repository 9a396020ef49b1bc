// What this processor has, as far as NPU_MAX_ISA lets it be used.
#pragma once

#include <string>

#include "core/dtype.h"

namespace npu {

enum class Vectors { Sse4, Avx2, Avx512, Avx512Bf16 };  // each includes those before it

// Whether code for these vectors may run.
bool has(Vectors vectors);

// Calls choose.template operator()<vectors>() for the widest vectors with kernels for an element type
// (float32, or bfloat16 where its products are instructions) that may run; nullptr where there are none.
template <class Choose>
auto for_machine(DType type, Choose&& choose) -> decltype(choose.template operator()<Vectors::Avx512>()) {
  const bool narrow = type == DType::BFloat16;
  if (has(narrow ? Vectors::Avx512Bf16 : Vectors::Avx512))
    return choose.template operator()<Vectors::Avx512>();
  return !narrow && has(Vectors::Avx2) ? choose.template operator()<Vectors::Avx2>() : nullptr;
}

// A name for a task's kernels: "pointwise:avx512".
std::string with_vectors(const char* kernels);

// Whether products of bytes are summed in 32 bits; older processors saturate the sum of each two at 16 bits.
bool sums_bytes_exactly();

// Reads NPU_MAX_ISA, which counts for oneDNN as well; before anything asks oneDNN what it may use.
void limit_instructions();

}  // namespace npu
