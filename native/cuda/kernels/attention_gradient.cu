// The gradients of attention over up to 128 queries and keys as one kernel: a block for each head, scores and
// slopes never in memory. float16 and bfloat16, sums in float32. From sm_80 on.
//
// Each of 8 warps has 16 queries. Their scores against all keys are in its registers, so that softmax, and
// the sum of weights times their slopes, need no other warp. Weights, then slopes of the scores, go to shared
// memory once, where the products over queries (of keys and values) read them transposed.
#include "common.cuh"

namespace {

constexpr int kRows = 128, kWarps = 8, kThreads = 32 * kWarps;
constexpr int kScores = kRows + 8;  // elements of a row of weights in shared memory: rows begin 4 banks apart

struct Half {
  static __device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                                  unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

struct Brain {
  static __device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                                  unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

__device__ __forceinline__ void load_transposed(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// A matrix of one head in memory: its first element and the distance of rows, in elements.
struct Matrix {
  unsigned short* data;
  long long row;
};

// Copy a matrix to shared memory, with zeros behind its rows; the caller waits.
template <int COLUMNS>
__device__ __forceinline__ void fetch(unsigned shared, Matrix x, int rows) {
  constexpr int kPieces = COLUMNS / 8;  // of 16 bytes
#pragma unroll
  for (int i = 0; i < kRows * kPieces / kThreads; i++) {
    const int piece = i * kThreads + threadIdx.x, row = piece / kPieces, column = piece % kPieces * 8;
    const bool there = row < rows;
    const unsigned short* from = x.data + (there ? row * x.row + column : 0);
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared + (row * (COLUMNS + 8) + column) * 2),
        "l"(from), "r"(there ? 16 : 0)
        : "memory");
  }
}

// d += a b' for 16 rows of a and all rows of b, both in shared memory with rows of COLUMNS elements.
template <class T, int COLUMNS>
__device__ __forceinline__ void score(float (&d)[16][4], unsigned a, unsigned b) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr int kRow = (COLUMNS + 8) * 2;
  a += (warp * 16 + lane % 16) * kRow + lane / 16 * 16;
  b += (lane / 16 * 8 + lane % 8) * kRow + lane / 8 % 2 * 16;
#pragma unroll
  for (int k = 0; k < COLUMNS / 16; k++) {
    unsigned left[4];
    load_matrix(left, a + k * 32);
#pragma unroll
    for (int n = 0; n < 8; n++) {
      unsigned right[4];
      load_matrix(right, b + n * 16 * kRow + k * 32);
      T::multiply(d[2 * n], left, right[0], right[1]);
      T::multiply(d[2 * n + 1], left, right[2], right[3]);
    }
  }
}

// d += a b for a fragment of 16 rows by 16 of a, and rows `first` to `first` + 15 of b in shared memory.
template <class T, int COLUMNS>
__device__ __forceinline__ void accumulate(float (&d)[COLUMNS / 8][4], const unsigned (&a)[4], unsigned b,
                                           int first) {
  const int lane = threadIdx.x % 32;
  constexpr int kRow = (COLUMNS + 8) * 2;
  b += (first + lane % 16) * kRow + lane / 16 * 16;
#pragma unroll
  for (int n = 0; n < COLUMNS / 16; n++) {
    unsigned right[4];
    load_transposed(right, b + n * 32);
    T::multiply(d[2 * n], a, right[0], right[1]);
    T::multiply(d[2 * n + 1], a, right[2], right[3]);
  }
}

// Store 16 rows of sums for the warp.
template <class T, int COLUMNS>
__device__ __forceinline__ void store(const float (&d)[COLUMNS / 8][4], Matrix x, int rows) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (row + 8 * half >= rows) continue;
    unsigned short* to = x.data + (row + 8 * half) * x.row + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++)
      *reinterpret_cast<unsigned*>(to + n * 8) = T::pack(d[n][2 * half], d[n][2 * half + 1]);
  }
}

// Put 16 rows of weights or slopes of the warp into shared memory.
template <class T>
__device__ __forceinline__ void keep(const float (&d)[16][4], char* shared) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int half = 0; half < 2; half++)
      *reinterpret_cast<unsigned*>(shared + ((row + 8 * half) * kScores + n * 8 + lane % 4 * 2) * 2) =
          T::pack(d[n][2 * half], d[n][2 * half + 1]);
}

// The sum of weights' or slopes' columns times rows: d = kept' b for 16 keys of the warp.
template <class T, int COLUMNS>
__device__ __forceinline__ void over_queries(float (&d)[COLUMNS / 8][4], unsigned kept, unsigned b) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  kept += ((lane / 16 * 8 + lane % 8) * kScores + warp * 16 + lane / 8 % 2 * 8) * 2;
#pragma unroll
  for (int q = 0; q < kRows / 16; q++) {
    unsigned left[4];
    load_transposed(left, kept + q * 16 * kScores * 2);
    accumulate<T, COLUMNS>(d, left, b, q * 16);
  }
}

template <class T, int COLUMNS>
__device__ __forceinline__ void gradient(Matrix dy, Matrix q, Matrix k, Matrix v, Matrix dq, Matrix dk,
                                         Matrix dv, int queries, int keys, float scale, bool causal) {
  extern __shared__ __align__(16) char shared[];
  constexpr int kMatrix = kRows * (COLUMNS + 8) * 2;
  const unsigned base = shared_address(shared), at_q = base, at_k = base + kMatrix, at_v = base + 2 * kMatrix,
                 at_dy = base + 3 * kMatrix, at_kept = base + 4 * kMatrix;
  char* kept = shared + 4 * kMatrix;
  fetch<COLUMNS>(at_q, q, queries);
  fetch<COLUMNS>(at_k, k, keys);
  fetch<COLUMNS>(at_v, v, keys);
  fetch<COLUMNS>(at_dy, dy, queries);
  asm volatile("cp.async.wait_all;");
  __syncthreads();

  float p[16][4] = {}, s[16][4] = {};
  score<T, COLUMNS>(p, at_q, at_k);
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  const float power = scale * 1.44269504088896340736f;  // of two instead of e
  float top[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, inner[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int column = n * 8 + lane % 4 * 2 + i % 2;
      const bool hidden = column >= keys || (causal && column > row + i / 2 * 8);
      p[n][i] = hidden ? -INFINITY : p[n][i] * power;
      top[i / 2] = fmaxf(top[i / 2], p[n][i]);
    }
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
      top[half] = fmaxf(top[half], __shfl_xor_sync(~0u, top[half], distance));
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      p[n][i] = exp2f(p[n][i] - top[i / 2]);
      total[i / 2] += p[n][i];
    }
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
      total[half] += __shfl_xor_sync(~0u, total[half], distance);
    total[half] = 1.0f / total[half];
  }
  score<T, COLUMNS>(s, at_dy, at_v);
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      p[n][i] *= total[i / 2];
      inner[i / 2] += p[n][i] * s[n][i];
    }
#pragma unroll
  for (int half = 0; half < 2; half++)
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
      inner[half] += __shfl_xor_sync(~0u, inner[half], distance);
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) s[n][i] = p[n][i] * (s[n][i] - inner[i / 2]) * scale;

  keep<T>(p, kept);
  float d[COLUMNS / 8][4] = {};
#pragma unroll
  for (int j = 0; j < 8; j++) {
    const unsigned left[4] = {T::pack(s[2 * j][0], s[2 * j][1]), T::pack(s[2 * j][2], s[2 * j][3]),
                              T::pack(s[2 * j + 1][0], s[2 * j + 1][1]),
                              T::pack(s[2 * j + 1][2], s[2 * j + 1][3])};
    accumulate<T, COLUMNS>(d, left, at_k, j * 16);
  }
  store<T, COLUMNS>(d, dq, queries);
  __syncthreads();
  float dvs[COLUMNS / 8][4] = {};
  over_queries<T, COLUMNS>(dvs, at_kept, at_dy);
  store<T, COLUMNS>(dvs, dv, keys);
  __syncthreads();
  keep<T>(s, kept);
  __syncthreads();
  float dks[COLUMNS / 8][4] = {};
  over_queries<T, COLUMNS>(dks, at_kept, at_q);
  store<T, COLUMNS>(dks, dk, keys);
}

}  // namespace

using Address = unsigned short*;
using Number = long long;

// Addresses; heads of a stack, queries, keys, the bits of the scale, whether keys after a query are hidden;
// then for each matrix the distances of stacks, heads and rows.
#define KERNEL(NAME, TYPE, COLUMNS)                                                                       \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                               \
      NAME(Address dy, Address q, Address k, Address v, Address dq, Address dk, Address dv, Number heads, \
           Number queries, Number keys, Number scale, Number causal, Number dy0, Number dy1, Number dy2,  \
           Number q0, Number q1, Number q2, Number k0, Number k1, Number k2, Number v0, Number v1,        \
           Number v2, Number dq0, Number dq1, Number dq2, Number dk0, Number dk1, Number dk2, Number dv0, \
           Number dv1, Number dv2) {                                                                      \
    const Number stack = blockIdx.x / heads, head = blockIdx.x % heads;                                   \
    gradient<TYPE, COLUMNS>({dy + stack * dy0 + head * dy1, dy2}, {q + stack * q0 + head * q1, q2},       \
                            {k + stack * k0 + head * k1, k2}, {v + stack * v0 + head * v1, v2},           \
                            {dq + stack * dq0 + head * dq1, dq2}, {dk + stack * dk0 + head * dk1, dk2},   \
                            {dv + stack * dv0 + head * dv1, dv2}, int(queries), int(keys),                \
                            __int_as_float(int(scale)), causal != 0);                                     \
  }

KERNEL(attention_gradient_float16_32, Half, 32)
KERNEL(attention_gradient_float16_64, Half, 64)
KERNEL(attention_gradient_bfloat16_32, Brain, 32)
KERNEL(attention_gradient_bfloat16_64, Brain, 64)
