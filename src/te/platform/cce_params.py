"""Names of memories and block sizes that older operator files mention."""

scope_ubuf = "local.UB"
scope_cbuf = "local.L1"
scope_gm = "global"
BLOCK_REDUCE = 16
BLOCK_IN = 16
BLOCK_OUT = 16
BLOCK_REDUCE_INT8 = 32
CUBE_MKN = {
    "float16": {"mac": [16, 16, 16]},
    "int8": {"mac": [16, 32, 16]},
}
