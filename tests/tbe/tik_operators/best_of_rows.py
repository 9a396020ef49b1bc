"""The largest element of each repeat with its lane, sums of repeats and of blocks."""

from te import tik


def best_of_rows(x, pairs, sums, groups, kernel_name="best_of_rows"):
    rows = x["shape"][0]
    t = tik.Tik(tik.Dprofile())
    x_gm = t.Tensor("float16", (rows, 128), name="x_gm", scope=tik.scope_gm)
    pairs_gm = t.Tensor("float16", (rows, 2), name="pairs_gm", scope=tik.scope_gm)
    sums_gm = t.Tensor("float16", (rows,), name="sums_gm", scope=tik.scope_gm)
    groups_gm = t.Tensor("float16", (rows, 8), name="groups_gm", scope=tik.scope_gm)
    x_ub = t.Tensor("float16", (rows, 128), name="x_ub", scope=tik.scope_ubuf)
    pairs_ub = t.Tensor("float16", (rows, 2), name="pairs_ub", scope=tik.scope_ubuf)
    sums_ub = t.Tensor("float16", (rows,), name="sums_ub", scope=tik.scope_ubuf)
    groups_ub = t.Tensor("float16", (rows, 8), name="groups_ub", scope=tik.scope_ubuf)
    t.data_move(x_ub, x_gm, 0, 1, rows * 8, 0, 0)
    t.vcmax(128, pairs_ub, x_ub, rows, 1, 1, 8)
    t.vcadd(128, sums_ub, x_ub, rows, 1, 1, 8)
    t.vcgmax(128, groups_ub, x_ub, rows, 1, 1, 8)
    t.data_move(pairs_gm, pairs_ub, 0, 1, rows * 2 // 16, 0, 0)
    t.data_move(sums_gm, sums_ub, 0, 1, rows // 16, 0, 0)
    t.data_move(groups_gm, groups_ub, 0, 1, rows * 8 // 16, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm], outputs=[pairs_gm, sums_gm, groups_gm])
    return t
