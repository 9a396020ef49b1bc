"""Square blocks on the diagonal of a matrix of zeros, a row of blocks a core."""

from te import tik
from topi.cce import util


def combine_blocks(input_x, output, kernel_name="combine_blocks"):
    count, side, _ = input_x.get("shape")
    if util.get_product_version() == util.VERSION_MINI:
        tik_instance = tik.Tik(tik.Dprofile("v100", "mini"))
    else:
        tik_instance = tik.Tik(tik.Dprofile("v100", "cloud"))
    whole = count * side
    x = tik_instance.Tensor("float32", (count, side, side), name="x", scope=tik.scope_gm)
    res = tik_instance.Tensor("float32", (whole, whole), name="res", scope=tik.scope_gm)
    zero = tik_instance.Scalar("float32")
    zero.set_as(0.0)
    with tik_instance.for_range(0, side // 4, block_num=side // 4) as block_index, \
            tik_instance.for_range(0, count) as i:  # fmt: skip
        rows = tik_instance.Tensor("float32", (4, whole), name="rows", scope=tik.scope_ubuf)
        tik_instance.vector_dup(64, rows, zero, 4 * whole // 64, 1, 8)
        with tik_instance.for_range(0, 4) as j:
            tik_instance.data_move(rows[j, side * i], x[i, block_index * 4 + j, 0], 0, 1, side // 8, 0, 0)
        tik_instance.data_move(res[i * side + block_index * 4, 0], rows, 0, 1, 4 * whole // 8, 0, 0)
    tik_instance.BuildCCE(kernel_name=kernel_name, inputs=[x], outputs=[res])
    return tik_instance
