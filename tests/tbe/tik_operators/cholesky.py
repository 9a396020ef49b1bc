"""The upper factor U of a positive matrix: U' U = A, a row at a time, with repeats that the row decides."""

from te import tik


def cholesky(input_x, output, kernel_name="cholesky"):
    side = input_x.get("shape")[0]
    t = tik.Tik(tik.Dprofile())
    x = t.Tensor("float32", (side, side), name="x", scope=tik.scope_gm)
    res = t.Tensor("float32", (side, side), name="res", scope=tik.scope_gm)
    lines = side // 64
    a = t.Tensor("float32", (side, side), name="a", scope=tik.scope_ubuf)
    spread = t.Tensor("float32", (side, side), name="spread", scope=tik.scope_ubuf)
    logs = t.Tensor("float32", (side,), name="logs", scope=tik.scope_ubuf)
    half = t.Scalar("float32", init_value=-0.5)
    with t.for_range(0, side) as i:
        t.data_move(a[i, 0], x[i, 0], 0, 1, lines * 8, 0, 0)
    with t.for_range(0, side) as i:
        factor = t.Scalar("float32")
        t.vmaxs(64, logs, a[i, 0], 1e-30, lines, 1, 1, 8, 8)
        t.vln(64, logs, logs, lines, 1, 1, 8, 8)
        t.vmuls(64, logs, logs, half, lines, 1, 1, 8, 8)
        t.vexp(64, logs, logs, lines, 1, 1, 8, 8)
        factor.set_as(logs[i])
        t.vmuls(64, a[i, 0], a[i, 0], factor, lines, 1, 1, 8, 8)
        with t.for_range(i + 1, side) as j:
            number = t.Scalar("float32")
            number.set_as(a[i, j])
            t.vmuls(64, spread[j, 0], a[i, 0], number, lines, 1, 1, 8, 8)
        with t.if_scope(i + 1 < side):
            t.vsub(64, a[i + 1, 0], a[i + 1, 0], spread[i + 1, 0], (side - 1 - i) * lines, 1, 1, 1, 8, 8, 8)
        with t.for_range(0, i) as j:
            a[i, j].set_as(0.0)
    t.data_move(res, a, 0, 1, side * lines * 8, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x], outputs=[res])
    return t
