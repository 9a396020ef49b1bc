"""float32 to int32 and to half precision and back, with every rounding."""

from te import tik


def quantise(x, whole, half, mode="round", kernel_name="quantise"):
    count = x["shape"][0]
    t = tik.Tik(tik.Dprofile("v100", "mini"))
    x_gm = t.Tensor("float32", (count,), name="x_gm", scope=tik.scope_gm)
    whole_gm = t.Tensor("int32", (count,), name="whole_gm", scope=tik.scope_gm)
    half_gm = t.Tensor("float16", (count,), name="half_gm", scope=tik.scope_gm)
    x_ub = t.Tensor("float32", (count,), name="x_ub", scope=tik.scope_ubuf)
    whole_ub = t.Tensor("int32", (count,), name="whole_ub", scope=tik.scope_ubuf)
    half_ub = t.Tensor("float16", (count,), name="half_ub", scope=tik.scope_ubuf)
    t.data_move(x_ub, x_gm, 0, 1, count // 8, 0, 0)
    t.vec_conv(64, mode, whole_ub, x_ub, count // 64, 8, 8)
    t.vconv(64, "none", half_ub, x_ub, count // 64, 1, 1, 4, 8)
    t.data_move(whole_gm, whole_ub, 0, 1, count // 8, 0, 0)
    t.data_move(half_gm, half_ub, 0, 1, count // 16, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm], outputs=[whole_gm, half_gm])
    return t
