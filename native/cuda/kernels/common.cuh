// What our own kernels share: matrix loads, products of tensor cores, rounding.
#pragma once

#include <cuda_fp16.h>

namespace {

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return unsigned(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void load_matrix(unsigned* r, unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// ReLU of both, which passes NaN, rounded to float16; `a` is the first in memory.
__device__ __forceinline__ unsigned pack(float a, float b) {
  unsigned pair;
  asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  return pair;
}

}  // namespace
