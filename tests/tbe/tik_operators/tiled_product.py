"""A product of float16 matrices whose tiles the file makes itself: blocks of rows, transposed columns, the cube."""

from tbe import tik


def tiled_product(a, b, y, kernel_name="tiled_product"):
    rows, inner = a["shape"]
    columns = b["shape"][1]
    blocks = inner // 16
    t = tik.Tik(tik.Dprofile())
    a_gm = t.Tensor("float16", (rows, inner), name="a_gm", scope=tik.scope_gm)
    b_gm = t.Tensor("float16", (inner, columns), name="b_gm", scope=tik.scope_gm)
    y_gm = t.Tensor("float16", (rows, columns), name="y_gm", scope=tik.scope_gm)
    space = t.Tensor(
        "float16", (columns // 16, rows, 16), name="space", scope=tik.scope_gm, is_workspace=True
    )
    tall = -(-rows // 16) * 16
    a_l1 = t.Tensor("float16", (blocks, tall, 16), name="a_l1", scope=tik.scope_cbuf)
    b_l1 = t.Tensor("float16", (blocks, columns, 16), name="b_l1", scope=tik.scope_cbuf)
    sums = t.Tensor("float32", (columns // 16, tall, 16), name="sums", scope=tik.scope_cbuf_out)
    with t.for_range(0, blocks) as i:
        t.data_move(a_l1[i * tall * 16], a_gm[i * 16], 0, rows, 1, blocks - 1, 0)
        wide = t.Tensor("float16", (16, columns), name="wide", scope=tik.scope_ubuf)
        turned = t.Tensor("float16", (columns, 16), name="turned", scope=tik.scope_ubuf)
        t.data_move(wide, b_gm[i * 16 * columns], 0, 1, columns, 0, 0)
        repeats = columns // 16
        apart = (16, 1) if repeats > 1 else (0, 0)
        t.vec_trans_scatter(
            False,
            False,
            [turned[16 * j] for j in range(16)],
            [wide[columns * j] for j in range(16)],
            repeats,
            *apart,
        )
        t.data_move(b_l1[i * columns * 16], turned, 0, 1, columns, 0, 0)
    t.matmul(sums, a_l1, b_l1, rows, inner, columns)
    convert = {"quantize_params": {"mode": "fp322fp16", "mode_param": None}}
    t.fixpipe(space, sums, columns // 16, rows * 2, 0, 0, extend_params=convert)
    with t.for_range(0, columns // 16) as j:
        piece = t.Tensor("float16", (rows, 16), name="piece", scope=tik.scope_ubuf)
        t.data_move(piece, space[j * rows * 16], 0, 1, rows, 0, 0)
        t.data_move(y_gm[j * 16], piece, 0, rows, 1, 0, columns // 16 - 1)
    t.BuildCCE(kernel_name=kernel_name, inputs=[a_gm, b_gm], outputs=[y_gm])
    return t
