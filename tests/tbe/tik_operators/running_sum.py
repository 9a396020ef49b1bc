"""A running sum, element by element with scalars, and its parity counted by branches."""

from tbe import tik


def running_sum(x, y, odd, kernel_name="running_sum"):
    count = x["shape"][0]
    t = tik.Tik(tik.Dprofile())
    x_gm = t.Tensor("int32", (count,), name="x_gm", scope=tik.scope_gm)
    y_gm = t.Tensor("int32", (count,), name="y_gm", scope=tik.scope_gm)
    odd_gm = t.Tensor("int32", (8,), name="odd_gm", scope=tik.scope_gm)
    x_ub = t.Tensor("int32", (count,), name="x_ub", scope=tik.scope_ubuf)
    odd_ub = t.Tensor("int32", (8,), name="odd_ub", scope=tik.scope_ubuf)
    t.data_move(x_ub, x_gm, 0, 1, count // 8, 0, 0)
    t.vec_dup(8, odd_ub, 0, 1, 1)
    total = t.Scalar("int32", name="total", init_value=0)
    value = t.Scalar("int32", name="value")
    with t.for_range(0, count) as i:
        value.set_as(x_ub[i])
        total.set_as(total + value)
        x_ub[i].set_as(total)
        with t.if_scope(total % 2 == 0):
            odd_ub[0].set_as(odd_ub[0] + 1)
        with t.elif_scope(tik.all(total > 0, total < 100)):
            odd_ub[1].set_as(odd_ub[1] + 1)
        with t.else_scope():
            odd_ub[2].set_as(odd_ub[2] + 1)
    t.data_move(y_gm, x_ub, 0, 1, count // 8, 0, 0)
    t.data_move(odd_gm, odd_ub, 0, 1, 1, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm], outputs=[y_gm, odd_gm])
    return t
