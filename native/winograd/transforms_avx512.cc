// The transforms for AVX-512.
#define NPU_LANES 16
#define NPU_TABLE kTransformsAvx512
#include "winograd/transforms.inc"
