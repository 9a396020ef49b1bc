"""Rows by number: scalars read from a tensor of indices choose what is moved."""

from te import tik


def gather_rows(table, index, y, kernel_name="gather_rows"):
    rows, cols = table["shape"]
    count = index["shape"][0]
    t = tik.Tik(tik.Dprofile())
    table_gm = t.Tensor(table["dtype"], (rows, cols), name="table_gm", scope=tik.scope_gm)
    index_gm = t.Tensor("int32", (count,), name="index_gm", scope=tik.scope_gm)
    y_gm = t.Tensor(table["dtype"], (count, cols), name="y_gm", scope=tik.scope_gm)
    index_ub = t.Tensor("int32", ((count + 7) // 8 * 8,), name="index_ub", scope=tik.scope_ubuf)
    t.data_move(index_ub, index_gm, 0, 1, (count + 7) // 8, 0, 0)
    place = t.Scalar("int32", name="place")
    with t.for_range(0, count) as i:
        row = t.Tensor(table["dtype"], (cols,), name="row", scope=tik.scope_ubuf)
        place.set_as(index_ub[i])
        t.data_move(row, table_gm[place, 0], 0, 1, cols // 8, 0, 0)
        t.data_move(y_gm[i, 0], row, 0, 1, cols // 8, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[table_gm, index_gm], outputs=[y_gm])
    return t
