"""Every second lane by a mask of bits, blocks apart by their stride."""

from tbe import tik


def every_second(x, y, kernel_name="every_second"):
    t = tik.Tik(tik.Dprofile())
    x_gm = t.Tensor("float16", (256,), name="x_gm", scope=tik.scope_gm)
    y_gm = t.Tensor("float16", (256,), name="y_gm", scope=tik.scope_gm)
    x_ub = t.Tensor("float16", (256,), name="x_ub", scope=tik.scope_ubuf)
    y_ub = t.Tensor("float16", (256,), name="y_ub", scope=tik.scope_ubuf)
    t.data_move(x_ub, x_gm, 0, 1, 16, 0, 0)
    t.vector_dup(128, y_ub, -1.0, 2, 1, 8)
    mask = [0x5555555555555555, 0x5555555555555555]
    t.vabs(mask, y_ub, x_ub, 1, 2, 2, 8, 8)
    t.data_move(y_gm, y_ub, 0, 1, 16, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm], outputs=[y_gm])
    return t
