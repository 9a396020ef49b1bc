"""Addition in tiles of 1024 elements, two at a time."""

from functools import reduce

from te import tik

TILE = 1024


def add_tik(input_x, input_y, output_z, kernel_name="add_tik"):
    total = reduce(lambda a, b: a * b, input_x["shape"])
    dtype = input_x["dtype"]
    tik_instance = tik.Tik(tik.Dprofile("v100", "cloud"))
    x_gm = tik_instance.Tensor(dtype, (total,), name="x_gm", scope=tik.scope_gm)
    y_gm = tik_instance.Tensor(dtype, (total,), name="y_gm", scope=tik.scope_gm)
    z_gm = tik_instance.Tensor(dtype, (total,), name="z_gm", scope=tik.scope_gm)
    with tik_instance.for_range(0, total // TILE, thread_num=2) as i:
        x_ub = tik_instance.Tensor(dtype, (TILE,), name="x_ub", scope=tik.scope_ubuf)
        y_ub = tik_instance.Tensor(dtype, (TILE,), name="y_ub", scope=tik.scope_ubuf)
        tik_instance.data_move(x_ub, x_gm[i * TILE], 0, 1, TILE // 16, 0, 0)
        tik_instance.data_move(y_ub, y_gm[i * TILE], 0, 1, TILE // 16, 0, 0)
        tik_instance.vec_add(128, x_ub, x_ub, y_ub, TILE // 128, 8, 8, 8)
        tik_instance.data_move(z_gm[i * TILE], x_ub, 0, 1, TILE // 16, 0, 0)
    tik_instance.BuildCCE(kernel_name=kernel_name, inputs=[x_gm, y_gm], outputs=[z_gm])
    return tik_instance
