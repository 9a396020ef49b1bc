"""A product of float16 matrices in fractals: L1 to L0A and L0B by load2dv1, mmad over parts of K, out by data_move."""

from te import tik


def fractal_product(a, b, y, kernel_name="fractal_product"):
    """a is [K1, M1, 16, 16], b [N1, K1, 16, 16], y [N1, M1, 16, 16]: fractals by columns, rows first inside."""
    k1, m1 = a["shape"][:2]
    n1 = b["shape"][0]
    half = k1 // 2
    t = tik.Tik(tik.Dprofile("v100", "cloud"))
    a_gm = t.Tensor("float16", (k1, m1, 16, 16), name="a_gm", scope=tik.scope_gm)
    b_gm = t.Tensor("float16", (n1, k1, 16, 16), name="b_gm", scope=tik.scope_gm)
    y_gm = t.Tensor("float16", (n1, m1, 16, 16), name="y_gm", scope=tik.scope_gm)
    sums = t.Tensor("float32", (n1, m1, 16, 16), name="sums", scope=tik.scope_cc)
    with t.for_range(0, 2, thread_num=2) as part:
        a_l1 = t.Tensor("float16", (half, m1, 16, 16), name="a_l1", scope=tik.scope_cbuf)
        b_l1 = t.Tensor("float16", (n1, half, 16, 16), name="b_l1", scope=tik.scope_cbuf)
        t.data_move(a_l1, a_gm[part * half, 0, 0, 0], 0, 1, half * m1 * 16, 0, 0)
        t.data_move(b_l1, b_gm[0, part * half, 0, 0], 0, n1, half * 16, (k1 - half) * 16, 0)
        a_l0 = t.Tensor("float16", (m1, half, 16, 16), name="a_l0", scope=tik.scope_ca)
        b_l0 = t.Tensor("float16", (half, n1, 16, 16), name="b_l0", scope=tik.scope_cb)
        with t.for_range(0, m1) as i:
            t.load2dv1(a_l0[i, 0, 0, 0], a_l1[0, i, 0, 0], 0, half, m1, 0, False)
        with t.for_range(0, half) as i:
            t.load2dv1(b_l0[i, 0, 0, 0], b_l1, i, n1, half, 0, True)
        with t.if_scope(part == 0):
            t.mmad(sums, a_l0, b_l0, m1 * 16, half * 16, n1 * 16, 0)
        with t.else_scope():
            t.mmad(sums, a_l0, b_l0, m1 * 16, half * 16, n1 * 16, 1)
    y_ub = t.Tensor("float16", (n1, m1, 16, 16), name="y_ub", scope=tik.scope_ubuf)
    t.data_move(y_ub, sums, 0, 1, n1 * m1, 0, 0, 1)
    t.data_move(y_gm, y_ub, 0, 1, n1 * m1 * 16, 0, 0)
    t.BuildCCE(kernel_name=kernel_name, inputs=[a_gm, b_gm], outputs=[y_gm])
    return t
