"""3 x in TIK, 128 elements at a time; a reach beyond the tensor is a fault of the run."""

from tbe import tik


def tripled(x, y, reach=0, kernel_name="tripled"):
    size = 1
    for side in x["shape"]:
        size *= side
    t = tik.Tik(tik.Dprofile())
    x_gm = t.Tensor("float16", x["shape"], name="x_gm", scope=tik.scope_gm)
    y_gm = t.Tensor("float16", x["shape"], name="y_gm", scope=tik.scope_gm)
    with t.for_range(0, (reach or size) // 128) as i:
        part = t.Tensor("float16", (128,), name="part", scope=tik.scope_ubuf)
        t.data_move(part, x_gm[i * 128], 0, 1, 8, 0, 0)
        t.vec_muls(128, part, part, 3.0, 1, 8, 8)
        t.data_move(y_gm[i * 128], part, 0, 1, 8, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm], outputs=[y_gm])
    return t
