// Products with packed weights for vectors of four numbers.
#define NPU_LANES 4
#define NPU_TABLE kPackedSse4
#include "product/packed.inc"
