// Products with packed weights for AVX-512.
#define NPU_LANES 16
#define NPU_TABLE kPackedAvx512
#include "product/packed.inc"
