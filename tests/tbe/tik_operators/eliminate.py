"""X of L X = B, L lower with ones on its diagonal: each row is taken from those below it, whose number it decides."""

from te import tik


def eliminate(lower, right, solution, kernel_name="eliminate"):
    side, columns = right.get("shape")
    t = tik.Tik(tik.Dprofile())
    lower_gm = t.Tensor("float32", (side, side), name="lower_gm", scope=tik.scope_gm)
    right_gm = t.Tensor("float32", (side, columns), name="right_gm", scope=tik.scope_gm)
    solution_gm = t.Tensor("float32", (side, columns), name="solution_gm", scope=tik.scope_gm)
    factors = t.Tensor("float32", (side, side), name="factors", scope=tik.scope_ubuf)
    rows = t.Tensor("float32", (side, columns), name="rows", scope=tik.scope_ubuf)
    share = t.Tensor("float32", (side, columns), name="share", scope=tik.scope_ubuf)
    t.data_move(factors, lower_gm, 0, 1, side * side // 8, 0, 0)
    t.data_move(rows, right_gm, 0, 1, side * columns // 8, 0, 0)
    with t.for_range(0, side) as done:
        below = side - 1 - done
        with t.for_range(0, below) as step:
            factor = t.Scalar("float32")
            factor.set_as(factors[done + 1 + step, done])
            t.vmuls(columns, share[step, 0], rows[done, 0], factor, 1, 1, 1, 8, 8)
        with t.if_scope(below > 0):
            t.vsub(columns, rows[done + 1, 0], rows[done + 1, 0], share, below, 1, 1, 1, 8, 8, 8)
    t.data_move(solution_gm, rows, 0, 1, side * columns // 8, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[lower_gm, right_gm], outputs=[solution_gm])
    return t
