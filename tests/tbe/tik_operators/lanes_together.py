"""(n, groups, places, 16) to (n, places, groups, 16): bursts of a block with gaps, half of the places at a time."""

from te import tik


def lanes_together(x, y, kernel_name="lanes_together"):
    images, groups, places, lanes = x.get("shape")
    t = tik.Tik(tik.Dprofile("v100", "cloud"))
    x_gm = t.Tensor("float16", (images, groups, places, lanes), name="x_gm", scope=tik.scope_gm)
    y_gm = t.Tensor("float16", (images, places, groups, lanes), name="y_gm", scope=tik.scope_gm)
    part = places // 2
    with t.for_range(0, images, block_num=images) as image, t.for_range(0, 2, thread_num=2) as turn:
        joined = t.Tensor("float16", (part, groups, lanes), name="joined", scope=tik.scope_ubuf)
        with t.for_range(0, groups) as group:
            t.data_move(joined[0, group, 0], x_gm[image, group, turn * part, 0], 0, part, 1, 0, groups - 1)
        t.data_move(y_gm[image, turn * part, 0, 0], joined, 0, 1, part * groups, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm], outputs=[y_gm])
    return t
