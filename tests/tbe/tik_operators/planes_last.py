"""(n, c1, h, w, 16) to (n, h, w, c1, 16): copies of 16 lanes by additions of zero, in two halves."""

from te import tik


def planes_last(input_x, output, kernel_name="planes_last"):
    n, c1, h, w, c0 = input_x.get("shape")
    tik_instance = tik.Tik(tik.Dprofile("v100", "cloud"))
    x = tik_instance.Tensor("float16", (n, c1, h, w, c0), name="x", scope=tik.scope_gm)
    res = tik_instance.Tensor("float16", (n, h, w, c1, c0), name="res", scope=tik.scope_gm)
    plane, half = h * w * c0, h * w // 2
    with tik_instance.for_range(0, n, block_num=n) as block_idx:
        zero = tik_instance.Scalar(dtype="float16", init_value=0)
        with tik_instance.for_range(0, 2, thread_num=2) as db_idx:
            source = tik_instance.Tensor("float16", [c1 * half * 16], name="source", scope=tik.scope_ubuf)
            target = tik_instance.Tensor("float16", [c1 * half * 16], name="target", scope=tik.scope_ubuf)
            start = block_idx * (c1 * plane) + db_idx * (half * 16)
            tik_instance.data_move(source, x[start], 0, c1, half, half, 0)
            with tik_instance.for_range(0, half) as cc7, tik_instance.for_range(0, c1) as cc8:
                tik_instance.vadds(16, target[cc7 * c1 * 16 + cc8 * 16], source[half * 16 * cc8 + cc7 * 16],
                                   zero, 1, 1, 1, 0, 0)  # fmt: skip
            tik_instance.data_move(res[block_idx * c1 * plane + db_idx * (c1 * half * 16)], target, 0, 1,
                                   c1 * half, 0, 0)  # fmt: skip
    tik_instance.BuildCCE(kernel_name, inputs=[x], outputs=[res])
    return tik_instance
