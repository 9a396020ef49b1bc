"""A matrix of 16 x 16 blocks, each transposed and moved to its place."""

from tbe import tik


def transpose16(x, y, kernel_name="transpose16"):
    rows, cols = x["shape"]
    t = tik.Tik(tik.Dprofile())
    x_gm = t.Tensor("float16", (rows, cols), name="x_gm", scope=tik.scope_gm)
    y_gm = t.Tensor("float16", (cols, rows), name="y_gm", scope=tik.scope_gm)
    with t.for_range(0, rows // 16) as i, t.for_range(0, cols // 16) as j:
        block = t.Tensor("float16", (16, 16), name="block", scope=tik.scope_ubuf)
        turned = t.Tensor("float16", (16, 16), name="turned", scope=tik.scope_ubuf)
        t.data_move(block, x_gm[i * 16, j * 16], 0, 16, 1, cols // 16 - 1, 0)
        t.vec_trans(turned, block, 1, 1, 1)
        t.data_move(y_gm[j * 16, i * 16], turned, 0, 16, 1, 0, rows // 16 - 1)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm], outputs=[y_gm])
    return t
