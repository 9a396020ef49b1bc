"""y += a x with the counter mode and fused multiply-adds."""

from te import tik


def axpy(x, y, z, a=2.0, kernel_name="axpy"):
    count = x["shape"][0]
    t = tik.Tik(tik.Dprofile())
    x_gm, y_gm, z_gm = (
        t.Tensor("float32", (count,), name=n, scope=tik.scope_gm) for n in ("x_gm", "y_gm", "z_gm")
    )
    x_ub, y_ub = (t.Tensor("float32", (count,), name=n, scope=tik.scope_ubuf) for n in ("x_ub", "y_ub"))
    t.data_move(x_ub, x_gm, 0, 1, count // 8, 0, 0)
    t.data_move(y_ub, y_gm, 0, 1, count // 8, 0, 0)
    t.vec_axpy(64, y_ub, x_ub, a, count // 64, 8, 8)
    t.vmla(64, y_ub, x_ub, x_ub, count // 64, 1, 1, 1, 8, 8, 8)
    t.vec_adds(count, y_ub, y_ub, 1.0, 1, 8, 8, mask_mode="counter")
    t.data_move(z_gm, y_ub, 0, 1, count // 8, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm, y_gm], outputs=[z_gm])
    return t
