"""Softmax of rows of 64 float32: maximum, difference, exponential, sum, quotient."""

from tbe import tik


def row_softmax(x, y, kernel_name="row_softmax"):
    rows, cols = x["shape"]
    t = tik.Tik(tik.Dprofile())
    x_gm = t.Tensor("float32", (rows, cols), name="x_gm", scope=tik.scope_gm)
    y_gm = t.Tensor("float32", (rows, cols), name="y_gm", scope=tik.scope_gm)
    number = t.Scalar("float32", name="number")
    with t.for_range(0, rows, block_num=1) as r:
        row = t.Tensor("float32", (cols,), name="row", scope=tik.scope_ubuf)
        spread = t.Tensor("float32", (cols,), name="spread", scope=tik.scope_ubuf)
        top = t.Tensor("float32", (8,), name="top", scope=tik.scope_ubuf)
        work = t.Tensor("float32", (64,), name="work", scope=tik.scope_ubuf)
        t.data_move(row, x_gm[r, 0], 0, 1, cols // 8, 0, 0)
        t.vec_reduce_max(64, top, row, work, cols // 64, 8)
        number.set_as(top[0])
        t.vec_dup(64, spread, number, cols // 64, 8)
        t.vec_sub(64, row, row, spread, cols // 64, 8, 8, 8)
        t.vec_exp(64, row, row, cols // 64, 8, 8)
        t.vec_reduce_add(64, top, row, work, cols // 64, 8)
        number.set_as(top[0])
        t.vec_dup(64, spread, number, cols // 64, 8)
        t.vdiv(64, row, row, spread, cols // 64, 1, 1, 1, 8, 8, 8)
        t.data_move(y_gm[r, 0], row, 0, 1, cols // 8, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm], outputs=[y_gm])
    return t
