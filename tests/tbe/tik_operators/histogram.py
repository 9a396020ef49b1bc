"""Counts of numbers 0 to 7, added up in global memory piece by piece."""

from tbe import tik


def histogram(x, y, kernel_name="histogram"):
    count = x["shape"][0]
    t = tik.Tik(tik.Dprofile())
    x_gm = t.Tensor("int32", (count,), name="x_gm", scope=tik.scope_gm)
    y_gm = t.Tensor("int32", (8,), name="y_gm", scope=tik.scope_gm, is_atomic_add=True)
    with t.for_range(0, count // 64, block_num=count // 64) as block, t.new_stmt_scope():
        x_ub = t.Tensor("int32", (64,), name="x_ub", scope=tik.scope_ubuf)
        y_ub = t.Tensor("int32", (8,), name="y_ub", scope=tik.scope_ubuf)
        t.vec_dup(8, y_ub, 0, 1, 1)
        t.data_move(x_ub, x_gm[block * 64], 0, 1, 8, 0, 0)
        place = t.Scalar("int32", name="place")
        with t.for_range(0, 64) as i:
            place.set_as(x_ub[i])
            with t.if_scope(tik.any(place < 0, place > 7)):
                t.tik_continue()
            y_ub[place].set_as(y_ub[place] + 1)
        t.set_atomic_add(1)
        t.data_move(y_gm, y_ub, 0, 1, 1, 0, 0)
        t.set_atomic_add(0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm], outputs=[y_gm])
    return t
