"""Rows of two matrices in turn, a pair of rows a core; the other matrix's places stay free between the bursts."""

from te import tik


def shuffle_rows(even, odd, shuffled, kernel_name="shuffle_rows"):
    rows, columns = even.get("shape")
    t = tik.Tik(tik.Dprofile("v100", "cloud"))
    even_gm = t.Tensor("float32", (rows, columns), name="even_gm", scope=tik.scope_gm)
    odd_gm = t.Tensor("float32", (rows, columns), name="odd_gm", scope=tik.scope_gm)
    shuffled_gm = t.Tensor("float32", (2 * rows, columns), name="shuffled_gm", scope=tik.scope_gm)
    line = columns // 8
    with t.for_range(0, rows // 2, block_num=rows // 2) as core:
        four = t.Tensor("float32", (4, columns), name="four", scope=tik.scope_ubuf)
        t.data_move(four[0, 0], even_gm[2 * core, 0], 0, 2, line, 0, line)
        t.data_move(four[1, 0], odd_gm[2 * core, 0], 0, 2, line, 0, line)
        t.data_move(shuffled_gm[4 * core, 0], four, 0, 1, 4 * line, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[even_gm, odd_gm], outputs=[shuffled_gm])
    return t
