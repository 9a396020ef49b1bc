"""A 3 by 3 convolution: windows by load3dv1, a bias spread over L0C, one mmad, a ReLU on the way out."""

from tbe import tik


def windows_product(x, w, bias, y, stride=1, kernel_name="windows_product"):
    """x is [C1, H, W, 16], w [C1, 3, 3, Cout, 16], bias [Cout], y [Cout1, windows, 16], windows by sixteen."""
    c1, high, wide, _ = x["shape"]
    count = w["shape"][3]
    windows = y["shape"][1]
    t = tik.Tik()
    x_gm = t.Tensor("float16", x["shape"], name="x_gm", scope=tik.scope_gm)
    w_gm = t.Tensor("float16", w["shape"], name="w_gm", scope=tik.scope_gm)
    bias_gm = t.Tensor("float32", (count,), name="bias_gm", scope=tik.scope_gm)
    y_gm = t.Tensor("float32", y["shape"], name="y_gm", scope=tik.scope_gm)
    x_l1 = t.Tensor("float16", x["shape"], name="x_l1", scope=tik.scope_cbuf)
    t.data_move(x_l1, x_gm, 0, 1, c1 * high * wide, 0, 0)
    rows = t.Tensor("float16", (windows // 16, c1 * 9, 16, 16), name="rows", scope=tik.scope_ca)
    with t.for_range(0, c1) as block, t.for_range(0, 3) as i, t.for_range(0, 3) as j:
        t.load3dv1(rows[0, block * 9 + i * 3 + j, 0, 0], x_l1, (1, 1, 1, 1), high, wide, block, j, i, -1, -1,
                   stride, stride, 3, 3, 1, 1, c1 * 9, 1, windows // 16)  # fmt: skip
    weights = t.Tensor("float16", (c1 * 9, count // 16, 16, 16), name="weights", scope=tik.scope_cb)
    t.load2dv1(weights, w_gm, 0, c1 * 9 * count // 16, 1, 0)
    bias_ub = t.Tensor("float32", (count,), name="bias_ub", scope=tik.scope_ubuf)
    t.data_move(bias_ub, bias_gm, 0, 1, count // 8, 0, 0)
    sums = t.Tensor("float32", (count // 16, windows, 16), name="sums", scope=tik.scope_cc)
    with t.for_range(0, count // 16) as column, t.for_range(0, windows // 16) as row:
        t.broadcast_ub_to_l0c(sums[column, row * 16, 0], bias_ub[column * 16], 1, 1, 0, 0)
    t.mmad(sums, rows, weights, windows, c1 * 9 * 16, count, 1)
    out = t.Tensor("float32", (count // 16, windows, 16), name="out", scope=tik.scope_ubuf)
    t.tensor_mov(out, sums, "m", 1, count * windows // 256, 0, 0, relu=True)
    t.data_move(y_gm, out, 0, 1, count * windows // 8, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[x_gm, w_gm, bias_gm], outputs=[y_gm])
    return t
