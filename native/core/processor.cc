// The instruction sets in use: the processor's, or a subset.
#include "core/processor.h"

#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>

#include "runtime/library.h"

namespace npu {
namespace {

struct Limit {
  const char* name;
  Vectors vectors;
};

constexpr Limit kLimits[] = {{"sse4", Vectors::Sse4}, {"avx2", Vectors::Avx2}, {"avx512", Vectors::Avx512}};

#if NPU_ONEDNN
dnnl::cpu_isa onednn_name(Vectors vectors) {
  switch (vectors) {
    case Vectors::Sse4:
      return dnnl::cpu_isa::sse41;
    case Vectors::Avx2:
      return dnnl::cpu_isa::avx2;
    default:
      return dnnl::cpu_isa::avx512_core_vnni;
  }
}
#endif

Vectors limit = Vectors::Avx512Bf16;  // written once, as the library is loaded

#if defined(__x86_64__)
bool processor_has(Vectors vectors) {
  switch (vectors) {
    case Vectors::Sse4:
      return true;
    case Vectors::Avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Vectors::Avx512:
      return processor_has(Vectors::Avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq");
    case Vectors::Avx512Bf16:
      return processor_has(Vectors::Avx512) && __builtin_cpu_supports("avx512bf16");
  }
  return false;
}
#else
bool processor_has(Vectors) { return false; }  // all of them are of x86
#endif

void apply_limit() {
  const char* const text = std::getenv("NPU_MAX_ISA");
  const std::string wanted = text ? text : "";
  if (wanted.empty()) return;
  for (const Limit& known : kLimits) {
    if (wanted != known.name) continue;
    limit = known.vectors;
#if NPU_ONEDNN
    if (dnnl::set_max_cpu_isa(onednn_name(known.vectors)) != dnnl::status::success) {
      throw std::runtime_error("NPU_MAX_ISA: oneDNN was in use before the runtime was loaded");
    }
#endif
    return;
  }
  // Any other value: npu_runtime/environment.py warns of it.
}

}  // namespace

bool has(Vectors vectors) { return vectors <= limit && processor_has(vectors); }

std::string with_vectors(const char* kernels) {
  return std::string(kernels) + (has(Vectors::Avx512) ? ":avx512" : ":avx2");
}

#if NPU_ONEDNN
bool sums_bytes_exactly() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41:
    case dnnl::cpu_isa::avx:
    case dnnl::cpu_isa::avx2:
    case dnnl::cpu_isa::avx512_core:
      return false;
    default:
      return true;
  }
}

#endif

void limit_instructions() {
  static std::once_flag once;
  std::call_once(once, apply_limit);
}

}  // namespace npu
