// The stem of residual networks as one kernel: 7x7/2 convolution of 3 channels to 64, bias, ReLU and 3x3/2
// max pool; float16, the result channels last. From sm_80 on.
//
// A block walks down a strip of the image, two rows of the convolution (one of the pool) at a time, a thread
// for each pixel of a row of the image. Input rows are in a ring in shared memory as pixels of 4 channels (8
// bytes), 3 pixels of padding in front. Output pixel ox reads 8 pixels from 2*ox on: 64 contiguous bytes at a
// multiple of 16, which is what ldmatrix wants of a row. So the input itself is the left operand, K = 7 rows
// x 32, and no im2col is made. Weights are in the order of the right operand's fragments.
#include "common.cuh"

namespace {

constexpr int kRing = 16, kWeights = 14 * 2048, kMostThreads = 512;

struct Image {
  int height, width;
  __device__ int row() const { return (width + 6) * 8; }     // bytes of a row in the ring
  __device__ int result() const { return width / 2 * 128; }  // bytes of a row of the convolution
  __device__ int weights() const { return kRing * row(); }   // where the weights begin in shared memory
};

__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// One or two rows of the convolution from row `cy` on; a warp does 16 pixels of each.
template <int ROWS>
__device__ __forceinline__ void convolve(char* shared, const Image& image, int cy, const float (&bias)[16]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint4* weights = reinterpret_cast<const uint4*>(shared + image.weights()) + lane;
  const unsigned ring = shared_address(shared) + (warp * 16 + lane % 16) * 16 + lane / 16 * 16;
  float sum[ROWS][8][4] = {};
#pragma unroll
  for (int k = 0; k < 14; k++) {
    uint4 b[4];
#pragma unroll
    for (int j = 0; j < 4; j++) b[j] = weights[(k * 4 + j) * 32];
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
      unsigned a[4];  // input row 2*cy-3+r is at slot 2*cy+r
      load_matrix(a, ring + ((2 * (cy + row) + k / 2) & (kRing - 1)) * image.row() + k % 2 * 32);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        multiply(sum[row][2 * j], a, b[j].x, b[j].y);
        multiply(sum[row][2 * j + 1], a, b[j].z, b[j].w);
      }
    }
  }
#pragma unroll
  for (int row = 0; row < ROWS; row++) {
    char* target = shared + image.weights() + kWeights + (cy + row) % 3 * image.result();
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int pixel = warp * 16 + lane / 4 + half * 8;
#pragma unroll
      for (int j = 0; j < 8; j++) {
        const float* s = sum[row][j] + half * 2;
        *reinterpret_cast<unsigned*>(target + pixel * 128 + (j ^ (pixel & 7)) * 16 + lane % 4 * 4) =
            pack(s[0] + bias[2 * j], s[1] + bias[2 * j + 1]);
      }
    }
  }
}

// Four input rows, two pairs of pixels (12 bytes each) a thread.
struct Pairs {
  unsigned v[2][3];
};

template <bool PLANES>
__device__ __forceinline__ Pairs fetch(const unsigned* x, const Image& image, int first) {
  const int pairs = image.width / 2, low = int(threadIdx.x) < pairs ? 0 : 1,
            column = threadIdx.x - low * pairs;
  Pairs p;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = first + 2 * i + low;
#pragma unroll
    for (int k = 0; k < 3; k++) {
      const int at = PLANES ? (k * image.height + row) * pairs + column : (row * pairs + column) * 3 + k;
      p.v[i][k] = row >= 0 && row < image.height ? x[at] : 0;
    }
  }
  return p;
}

template <bool PLANES>
__device__ __forceinline__ void keep(char* shared, const Image& image, const Pairs& p, int first) {
  const int pairs = image.width / 2, low = int(threadIdx.x) < pairs ? 0 : 1,
            column = threadIdx.x - low * pairs;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int slot = (first + 2 * i + low + 3) & (kRing - 1);
    uint2* target = reinterpret_cast<uint2*>(shared + slot * image.row()) + 3 + column * 2;
    const unsigned a = p.v[i][0], b = p.v[i][1], d = p.v[i][2];
    if (PLANES) {
      target[0] = make_uint2((a & 0xffff) | b << 16, d & 0xffff);
      target[1] = make_uint2(a >> 16 | (b & 0xffff0000), d >> 16);
    } else {
      target[0] = make_uint2(a, b & 0xffff);
      target[1] = make_uint2(b >> 16 | d << 16, d >> 16);
    }
  }
}

// Rows `begin` to `end` of the pool of one image; blocks are strips, image after image.
template <bool PLANES>
__device__ __forceinline__ void stem(const unsigned* x, const uint4* weights, const float* biases, uint4* y,
                                     int height, int width, int strip) {
  extern __shared__ __align__(128) char shared[];
  const Image image{height, width};
  const int pooled = height / 4, strips = (pooled + strip - 1) / strip, number = blockIdx.x / strips,
            lane = threadIdx.x % 32, begin = blockIdx.x % strips * strip, end = min(begin + strip, pooled);
  x += size_t(number) * height * width / 2 * 3;
  float bias[16];
#pragma unroll
  for (int j = 0; j < 8; j++) {
    bias[2 * j] = biases[j * 8 + lane % 4 * 2];
    bias[2 * j + 1] = biases[j * 8 + lane % 4 * 2 + 1];
  }
  for (int i = threadIdx.x; i < kWeights / 16; i += blockDim.x)
    reinterpret_cast<uint4*>(shared + image.weights())[i] = weights[i];
  for (int i = threadIdx.x; i < image.weights() / 16; i += blockDim.x)
    reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();
  // rows 4*begin-5 .. 4*begin+6 serve the row of the convolution before the strip and the first two in it
#pragma unroll
  for (int part = 0; part < 3; part++) {
    const int first = 4 * begin - 5 + 4 * part;
    keep<PLANES>(shared, image, fetch<PLANES>(x, image, first), first);
  }
  __syncthreads();
  if (begin > 0) convolve<1>(shared, image, 2 * begin - 1, bias);
  const char* rows = shared + image.weights() + kWeights;
  for (int py = begin; py < end; py++) {
    const Pairs next = fetch<PLANES>(x, image, 4 * py + 7);
    convolve<2>(shared, image, 2 * py, bias);
    __syncthreads();
    for (int item = threadIdx.x; item < 2 * width; item += blockDim.x) {
      const int px = item / 8, chunk = item % 8;
      __half2 best[4] = {};  // what ReLU has left is not below zero
#pragma unroll
      for (int dy = -1; dy < 2; dy++)
#pragma unroll
        for (int dx = -1; dx < 2; dx++) {
          const int cy = 2 * py + dy, cx = 2 * px + dx;
          if (cy < 0 || cx < 0) continue;
          const uint4 v = *reinterpret_cast<const uint4*>(rows + cy % 3 * image.result() + cx * 128 +
                                                          (chunk ^ (cx & 7)) * 16);
          const __half2* h = reinterpret_cast<const __half2*>(&v);
#pragma unroll
          for (int k = 0; k < 4; k++) best[k] = __hmax2_nan(best[k], h[k]);
        }
      y[((size_t(number) * pooled + py) * (width / 4) + px) * 8 + chunk] = *reinterpret_cast<uint4*>(best);
    }
    keep<PLANES>(shared, image, next, 4 * py + 7);
    __syncthreads();
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kMostThreads)
    stem_channels_first(const unsigned* __restrict__ x, const uint4* __restrict__ weights,
                        const float* __restrict__ biases, uint4* __restrict__ y, long long height,
                        long long width, long long strip) {
  stem<true>(x, weights, biases, y, int(height), int(width), int(strip));
}

extern "C" __global__ void __launch_bounds__(kMostThreads)
    stem_channels_last(const unsigned* __restrict__ x, const uint4* __restrict__ weights,
                       const float* __restrict__ biases, uint4* __restrict__ y, long long height,
                       long long width, long long strip) {
  stem<false>(x, weights, biases, y, int(height), int(width), int(strip));
}
