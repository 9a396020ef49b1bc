"""Leaky ReLU by comparison and selection."""

from impl.util.platform_adapter import tik


def leaky(x, y, slope=0.1, kernel_name="leaky"):
    count = x["shape"][0]
    t = tik.Tik()
    x_gm = t.Tensor("float16", (count,), name="x_gm", scope=tik.scope_gm)
    y_gm = t.Tensor("float16", (count,), name="y_gm", scope=tik.scope_gm)
    x_ub = t.Tensor("float16", (count,), name="x_ub", scope=tik.scope_ubuf)
    low = t.Tensor("float16", (count,), name="low", scope=tik.scope_ubuf)
    zero = t.Tensor("float16", (128,), name="zero", scope=tik.scope_ubuf)
    bits = t.Tensor("uint16", (count // 16,), name="bits", scope=tik.scope_ubuf)
    t.data_move(x_ub, x_gm, 0, 1, count // 16, 0, 0)
    t.vec_dup(128, zero, 0, 1, 8)
    t.vec_muls(128, low, x_ub, slope, count // 128, 8, 8)
    t.vec_cmpv_gt(bits, x_ub, zero, count // 128, 8, 0)
    t.vec_sel(128, 2, x_ub, bits, x_ub, low, count // 128, 8, 8, 8)
    t.data_move(y_gm, x_ub, 0, 1, count // 16, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm], outputs=[y_gm])
    return t
