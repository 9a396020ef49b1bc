// The instruction sets of this processor that NPU_MAX_ISA allows.
#pragma once

#include <string>

#include "core/dtype.h"

namespace npu {

enum class Vectors { Sse4, Avx2, Avx512, Avx512Bf16 };  // each includes those before it

// True if code for these vectors may run.
bool has(Vectors vectors);

// Calls choose.template operator()<vectors>() for the widest allowed vectors that have kernels for an element
// type (float32, or bfloat16 if its products are instructions); nullptr if there are none.
template <class Choose>
auto for_machine(DType type, Choose&& choose) -> decltype(choose.template operator()<Vectors::Avx512>()) {
  const bool narrow = type == DType::BFloat16;
  if (has(narrow ? Vectors::Avx512Bf16 : Vectors::Avx512))
    return choose.template operator()<Vectors::Avx512>();
  return !narrow && has(Vectors::Avx2) ? choose.template operator()<Vectors::Avx2>() : nullptr;
}

// The name of a task's kernels, such as "pointwise:avx512".
std::string with_vectors(const char* kernels);

// True if products of bytes accumulate in 32 bits; older processors saturate the sum of each pair to 16 bits.
bool sums_bytes_exactly();

// Reads NPU_MAX_ISA, which also applies to oneDNN; must run before oneDNN detects instructions.
void limit_instructions();

}  // namespace npu
