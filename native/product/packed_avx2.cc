// Products with packed weights for AVX2.
#define NPU_LANES 8
#define NPU_TABLE kPackedAvx2
#include "product/packed.inc"
