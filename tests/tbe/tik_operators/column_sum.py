"""The sum of the rows of a matrix: repeats that add to one destination, in their order."""

from tbe import tik


def column_sum(x, y, kernel_name="column_sum"):
    rows, cols = x["shape"]
    t = tik.Tik(tik.Dprofile())
    x_gm = t.Tensor("float32", (rows, cols), name="x_gm", scope=tik.scope_gm)
    y_gm = t.Tensor("float32", (cols,), name="y_gm", scope=tik.scope_gm)
    x_ub = t.Tensor("float32", (rows, cols), name="x_ub", scope=tik.scope_ubuf)
    y_ub = t.Tensor("float32", (cols,), name="y_ub", scope=tik.scope_ubuf)
    t.data_move(x_ub, x_gm, 0, 1, rows * cols // 8, 0, 0)
    t.vector_dup(64, y_ub, 0, cols // 64, 1, 8)
    with t.for_range(0, cols // 64) as c:
        t.vadd(64, y_ub[c * 64], y_ub[c * 64], x_ub[c * 64], rows, 1, 1, 1, 0, 0, cols // 8)
    t.data_move(y_gm, y_ub, 0, 1, cols // 8, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm], outputs=[y_gm])
    return t
