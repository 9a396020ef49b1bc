// Products with packed weights for AVX-512 with dot products of bytes.
#define NPU_LANES 16
#define NPU_TABLE kPackedVnni
#include "product/packed.inc"
