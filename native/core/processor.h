// What this processor has, as far as NPU_MAX_ISA lets it be used.
#pragma once

namespace npu {

enum class Vectors { Sse4, Avx2, Avx512, Avx512Bf16 };  // each includes those before it

// Whether code for these vectors may run.
bool has(Vectors vectors);

// Whether products of bytes are summed in 32 bits; older processors saturate the sum of each two at 16 bits.
bool sums_bytes_exactly();

// Reads NPU_MAX_ISA, which counts for oneDNN as well; before anything asks oneDNN what it may use.
void limit_instructions();

}  // namespace npu
