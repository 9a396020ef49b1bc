// The transforms for AVX2.
#define NPU_LANES 8
#define NPU_TABLE kTransformsAvx2
#include "winograd/transforms.inc"
