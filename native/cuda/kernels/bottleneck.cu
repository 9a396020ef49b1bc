// The middle of a bottleneck of residual networks as one kernel on Hopper's warpgroup products (wgmma, sm_90a
// alone); float16, channels last.
//
// From t (64 channels, what the block's first 1x1 has given) it makes
//     y    = relu(conv1x1(relu(conv3x3(t))) + residual)      256 channels
//     next = relu(conv1x1'(y))                               what the first 1x1 of the next block would give
// so that neither the 3x3's result nor y is read again for these products, and no pixel is computed twice:
// the halo of the 3x3 is on t alone. `residual` is the block's input, or (SHORT) a 1x1 product of a
// 64-channel input made on the way.
//
// A warpgroup takes 64 consecutive pixels (an image is a multiple of 64) and keeps all values between the
// products in registers: sums of one product, rounded, are the left operand of the next. All weights stay in
// shared memory for the life of a block, and with them the consecutive pixels of t that the windows of a tile
// read; those of the next tile are fetched while the 1x1 products run. Channels of y are permuted so that a
// thread's share of a pixel is two times 16 contiguous bytes (`ge.model.cuda.own` packs the weights so).
#include "common.cuh"

namespace {

constexpr int kBlock = 2048;  // bytes of weights for one m64n64k16

__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void product(float (&d)[32], const unsigned* a, unsigned long long b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,"
      "%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]),
        "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ __forceinline__ void meet(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}
// A pixel's 64 channels as left operands of four steps: row 0 or 1 of this thread.
__device__ __forceinline__ void spread(unsigned* a, int row, const uint4& u, const uint4& v) {
  a[row] = u.x;
  a[2 + row] = u.y;
  a[4 + row] = u.z;
  a[6 + row] = u.w;
  a[8 + row] = v.x;
  a[10 + row] = v.y;
  a[12 + row] = v.z;
  a[14 + row] = v.w;
}

// The eight numbers of a bias that go with a thread's share of a pixel.
struct Share {
  float v[8];
  __device__ explicit Share(const float* from) {
    const float4 low = *reinterpret_cast<const float4*>(from),
                 high = *reinterpret_cast<const float4*>(from + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  }
};

template <int NEXT, bool SHORT>
__device__ __forceinline__ void bottleneck(const char* t, const char* residual, const uint4* weights,
                                           const float* biases, char* y, char* next, int tiles, int height,
                                           int width) {
  constexpr int kSecond = 36 * kBlock, kThird = 16 * kBlock, kNext = 16 * kBlock * (NEXT / 64),
                kShort = SHORT ? 16 * kBlock : 0, kWeights = kSecond + kThird + kNext + kShort,
                kBias = 320 + NEXT, kZero = kWeights + 4 * kBias, kTiles = kZero + 128;
  extern __shared__ __align__(1024) char shared[];
  float* bias =
      reinterpret_cast<float*>(shared + kWeights);  // 64 of the 3x3, 256 of the 1x1, NEXT of the next
  for (int i = threadIdx.x; i < kWeights / 16; i += blockDim.x)
    reinterpret_cast<uint4*>(shared)[i] = weights[i];
  for (int i = threadIdx.x; i < kBias; i += blockDim.x) bias[i] = biases[i];
  if (threadIdx.x < 32) reinterpret_cast<unsigned*>(shared + kZero)[threadIdx.x] = 0;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const int groups = blockDim.x / 128, stride = gridDim.x * groups;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, q = lane % 4,
            first = threadIdx.x % 128 / 32 * 16 + lane / 4;
  const unsigned start = shared_address(shared);
  // no swizzle; 1024 bytes from k to k + 8, 128 bytes from n to n + 8
  const unsigned long long base = (start >> 4) | (1024ull >> 4) << 16 | (128ull >> 4) << 32;
  const unsigned long long second = base, third = base + kSecond / 16, onward = third + kThird / 16,
                           shortcut = onward + kNext / 16;
  const int area = height * width, per_image = area / 64, before = width + 1, pixels = 64 + 2 * before;
  const unsigned buffer = start + kTiles + group * pixels * 128;
  auto fetch =
      [&](int tile) {  // the tile and a row and a pixel on either side; zeros above and below the image
        const int origin = tile % per_image * 64 - before;
        const char* from = t + (size_t(tile / per_image) * area + origin) * 128;
        for (int i = threadIdx.x % 128; i < pixels * 8; i += 128) {
          const int pixel = i / 8, chunk = i % 8;
          const bool inside = unsigned(origin + pixel) < unsigned(area);
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(buffer + pixel * 128 +
                                                                             (chunk ^ (pixel & 7)) * 16),
                       "l"(inside ? from + i * 16 : t), "r"(inside ? 16 : 0)
                       : "memory");
        }
      };
  int tile = blockIdx.x * groups + group;
  if (tile < tiles) fetch(tile);
  for (; tile < tiles; tile += stride) {
    const int begin = tile % per_image * 64;
    const size_t image = size_t(tile / per_image) * area;
    const size_t place[2] = {image + begin + first, image + begin + first + 8};
    if (!SHORT) {  // the residual is the one thing that comes from far: ask for it now
      const char* line = residual + (image + begin) * 512 + threadIdx.x % 128 * 256;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
      asm volatile("prefetch.global.L2 [%0];" ::"l"(line + 128));
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    meet(group);
    float sum[32];
    unsigned a[2][16];
    const int row = threadIdx.x % 128 / 32 * 16 + lane % 16, x = (begin + row) % width;
    auto load = [&](unsigned* to, int tap) {  // the window's pixels as left operands of four steps
      const int dx = tap % 3 - 1, pixel = row + before + (tap / 3 - 1) * width + dx;
      const unsigned from = unsigned(x + dx) < unsigned(width) ? buffer + pixel * 128 : start + kZero;
#pragma unroll
      for (int s = 0; s < 4; s++) load_matrix(to + 4 * s, from + ((2 * s + lane / 16) ^ (pixel & 7)) * 16);
    };
    load(a[0], 0);
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
      fence();
#pragma unroll
      for (int s = 0; s < 4; s++)
        product(sum, a[tap & 1] + 4 * s, second + (tap * 4 + s) * (kBlock / 16), tap | s);
      commit();
      if (tap < 8) {
        wait<1>();
        load(a[(tap + 1) & 1], tap + 1);
      }
    }
    meet(group);
    if (tile + stride < tiles) fetch(tile + stride);
    wait<0>();
    unsigned mid[16], in[16];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const float2 b = *reinterpret_cast<const float2*>(bias + 8 * j + 2 * q);
      mid[2 * j] = pack(sum[4 * j] + b.x, sum[4 * j + 1] + b.y);
      mid[2 * j + 1] = pack(sum[4 * j + 2] + b.x, sum[4 * j + 3] + b.y);
    }
    if (SHORT) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const uint4* from = reinterpret_cast<const uint4*>(residual + place[h] * 128 + q * 16);
        spread(in, h, __ldg(from), __ldg(from + 4));
      }
    }
    uint4 r[2][2];
    auto ask = [&](int chunk) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const uint4* from = reinterpret_cast<const uint4*>(residual + place[h] * 512 + chunk * 128 + q * 16);
        r[h][0] = __ldg(from);
        r[h][1] = __ldg(from + 4);
      }
    };
    if (!SHORT) ask(0);
    float out[NEXT / 64][32];
#pragma unroll 1
    for (int chunk = 0; chunk < 4; chunk++) {
      fence();
#pragma unroll
      for (int s = 0; s < 4; s++) product(sum, mid + 4 * s, third + (chunk * 4 + s) * (kBlock / 16), s);
      if (SHORT) {
#pragma unroll
        for (int s = 0; s < 4; s++) product(sum, in + 4 * s, shortcut + (chunk * 4 + s) * (kBlock / 16), 1);
      }
      commit();
      wait<0>();
      unsigned word[16];  // [4 * step + row + 2 * half], the left operand of the next product
#pragma unroll
      for (int part = 0; part < 2; part++) {
        const Share add(bias + 64 + chunk * 64 + part * 32 + q * 8);
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const unsigned rest[4] = {r[h][part].x, r[h][part].y, r[h][part].z, r[h][part].w};
          uint4 store;
          unsigned* w = &store.x;
#pragma unroll
          for (int k = 0; k < 4; k++) {
            const int j = 4 * part + k;
            float2 more = make_float2(0.f, 0.f);
            if (!SHORT) more = __half22float2(*reinterpret_cast<const __half2*>(&rest[k]));
            w[k] = pack(sum[4 * j + 2 * h] + add.v[2 * k] + more.x,
                        sum[4 * j + 2 * h + 1] + add.v[2 * k + 1] + more.y);
            word[2 * j + h] = w[k];
          }
          *reinterpret_cast<uint4*>(y + place[h] * 512 + chunk * 128 + part * 64 + q * 16) = store;
        }
      }
      if (!SHORT && chunk < 3) ask(chunk + 1);
      fence();
#pragma unroll
      for (int g = 0; g < NEXT / 64; g++)
#pragma unroll
        for (int s = 0; s < 4; s++)
          product(out[g], word + 4 * s, onward + (g * 16 + chunk * 4 + s) * (kBlock / 16), chunk | s);
      commit();
    }
    wait<0>();
#pragma unroll
    for (int g = 0; g < NEXT / 64; g++)
#pragma unroll
      for (int part = 0; part < 2; part++) {
        const Share add(bias + 320 + g * 64 + part * 32 + q * 8);
#pragma unroll
        for (int h = 0; h < 2; h++) {
          uint4 store;
          unsigned* w = &store.x;
#pragma unroll
          for (int k = 0; k < 4; k++) {
            const int j = 4 * part + k;
            w[k] = pack(out[g][4 * j + 2 * h] + add.v[2 * k], out[g][4 * j + 2 * h + 1] + add.v[2 * k + 1]);
          }
          *reinterpret_cast<uint4*>(next + place[h] * (2 * NEXT) + g * 128 + part * 64 + q * 16) = store;
        }
      }
  }
}

}  // namespace

// SIDE: height and width of the images, 0 where the numbers that follow say it.
#define ENTRY(name, threads, next_channels, short, side)                                                     \
  extern "C" __global__ void __launch_bounds__(threads, 1)                                                   \
      name(const char* __restrict__ t, const char* __restrict__ residual, const uint4* __restrict__ weights, \
           const float* __restrict__ biases, char* __restrict__ y, char* __restrict__ next, long long tiles, \
           long long height, long long width) {                                                              \
    bottleneck<next_channels, short>(t, residual, weights, biases, y, next, int(tiles),                      \
                                     side ? side : int(height), side ? side : int(width));                   \
  }
ENTRY(bottleneck_to_64, 384, 64, false, 0)
ENTRY(bottleneck_to_128, 256, 128, false, 0)
ENTRY(bottleneck_with_shortcut_to_64, 256, 64, true, 0)
ENTRY(bottleneck_to_64_of_56, 384, 64, false, 56)
ENTRY(bottleneck_to_128_of_56, 256, 128, false, 56)
ENTRY(bottleneck_with_shortcut_to_64_of_56, 256, 64, true, 56)
