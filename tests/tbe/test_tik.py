"""TIK programs in the style of public samples, beside NumPy; rules of the language as errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tbe
from tbe import tik

FOLDER = Path(__file__).parent / "tik_operators"
RNG = np.random.default_rng(0)


def half(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float16)


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def run(name: str, *arrays: np.ndarray, **more: Any) -> Any:
    return tbe.run_operator(FOLDER / f"{name}.py", *arrays, **more)


def test_addition_in_tiles() -> None:
    x, y = half(4, 1024), half(4, 1024)
    np.testing.assert_array_equal(run("add_tik", x, y), (x + y).reshape(-1))


@pytest.mark.parametrize("count", [1, 7, 64, 65, 200, 1000])
def test_addition_with_a_tail(count: int) -> None:
    x, y = real(count), real(count)
    np.testing.assert_array_equal(run("vadd_tail", x, y), x + y)


@pytest.mark.parametrize("cols", [64, 192])
def test_softmax_of_rows(cols: int) -> None:
    x = real(5, cols)
    grown = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(run("row_softmax", x), grown / grown.sum(1, keepdims=True), rtol=2e-6)


def test_comparison_and_selection() -> None:
    x = half(512)
    np.testing.assert_array_equal(run("leaky", x, slope=0.25), np.where(x > 0, x, x * np.float16(0.25)))


@pytest.mark.parametrize(
    ("mode", "function"), [("round", np.rint), ("floor", np.floor), ("ceil", np.ceil), ("to-zero", np.trunc)]
)
def test_conversions(mode: str, function: Callable[[np.ndarray], np.ndarray]) -> None:
    x = np.concatenate([real(60) * 100, np.asarray([0.5, 1.5, 3e9, -3e9], np.float32)])
    outputs = [((64,), "int32"), ((64,), "float16")]
    whole, narrow = run("quantise", x, mode=mode, outputs=outputs)
    np.testing.assert_array_equal(whole, np.clip(function(x.astype(np.float64)), -(2**31), 2**31 - 1))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(narrow, x.astype(np.float16))


def test_blocks_are_transposed() -> None:
    x = half(32, 48)
    np.testing.assert_array_equal(run("transpose16", x, outputs=[((48, 32), "float16")]), x.T)


def test_scalars_loops_and_branches() -> None:
    x = RNG.integers(-20, 30, 64).astype(np.int32)
    total = np.cumsum(x)
    y, counts = run("running_sum", x, outputs=[((64,), "int32"), ((8,), "int32")])
    np.testing.assert_array_equal(y, total)
    even = total % 2 == 0
    small = ~even & (total > 0) & (total < 100)
    assert counts[:3].tolist() == [even.sum(), small.sum(), (~even & ~small).sum()]


def test_rows_by_number() -> None:
    table, index = real(10, 16), np.asarray([3, 9, 0, 3, 7], np.int32)
    np.testing.assert_array_equal(
        run("gather_rows", table, index, outputs=[((5, 16), "float32")]), table[index]
    )


def test_repeats_that_add_to_one_place_run_in_order() -> None:
    x = real(20, 128)
    wanted = np.zeros(128, np.float32)
    for row in x:
        wanted = wanted + row
    np.testing.assert_array_equal(run("column_sum", x, outputs=[((128,), "float32")]), wanted)


def test_reductions_of_repeats_and_blocks() -> None:
    x = RNG.permutation(np.arange(16 * 128) % 2048).reshape(16, 128).astype(np.float16)
    outputs = [((16, 2), "float16"), ((16,), "float16"), ((16, 8), "float16")]
    pairs, sums, groups = run("best_of_rows", x / np.float16(64), outputs=outputs)
    x = x / np.float16(64)
    np.testing.assert_array_equal(pairs[:, 0], x.max(1))
    np.testing.assert_array_equal(pairs[:, 1].view(np.uint16), x.argmax(1))
    np.testing.assert_allclose(sums, x.astype(np.float32).sum(1), rtol=4e-3)
    np.testing.assert_array_equal(groups, x.reshape(16, 8, 16).max(2))


def test_masks_of_bits_and_block_strides() -> None:
    x = half(256)
    wanted = np.full(256, -1, np.float16)
    for block in range(0, 16, 2):
        wanted[block * 16 : block * 16 + 16 : 2] = abs(x[block * 16 : block * 16 + 16 : 2])
    np.testing.assert_array_equal(run("every_second", x), wanted)


def test_atomic_additions_in_global_memory() -> None:
    x = RNG.integers(-1, 9, 256).astype(np.int32)
    found = run("histogram", x, outputs=[((8,), "int32")])
    np.testing.assert_array_equal(found, np.bincount(x[(x >= 0) & (x < 8)], minlength=8))


def test_products_that_are_added_and_the_counter_mode() -> None:
    x, y = real(192), real(192)
    np.testing.assert_array_equal(run("axpy", x, y, a=0.5), (y + np.float32(0.5) * x) + x * x + np.float32(1))


# -- rules -------------------------------------------------------------------------------------------------------


def program(write: Callable[[Any, Any, Any], None], size: int = 128) -> tik.Program:
    t = tik.Tik(tik.Dprofile())
    x = t.Tensor("float32", (size,), name="x", scope=tik.scope_gm)
    ub = t.Tensor("float32", (size,), name="ub", scope=tik.scope_ubuf)
    t.data_move(ub, x, 0, 1, size // 8, 0, 0)
    write(t, x, ub)
    return t.BuildCCE(kernel_name="rules", inputs=[x], outputs=[x])


RULES: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "mask": (lambda t, x, ub: t.vec_abs(65, ub, ub, 1, 8, 8), "mask is 65, not a whole number from 1 to 64"),
    "bits": (lambda t, x, ub: t.vec_abs([1, 0], ub, ub, 1, 8, 8), "lanes beyond the 64"),
    "repeats": (lambda t, x, ub: t.vec_abs(64, ub, ub, 256, 8, 8), "repeat_times is 256"),
    "reach": (
        lambda t, x, ub: t.vec_abs(64, ub, ub, 3, 8, 8),
        "dst reaches elements 0 to 191 of ub, which has 128",
    ),
    "align": (
        lambda t, x, ub: t.vec_abs(64, ub[4], ub, 1, 8, 8),
        "begins at byte 16, which is not a multiple of 32",
    ),
    "scope": (lambda t, x, ub: t.vec_abs(64, x, ub, 1, 8, 8), "dst x is in global"),
    "move": (lambda t, x, ub: t.data_move(ub, x, 0, 1, 17, 0, 0), "src reaches elements 0 to 135 of x"),
    "burst": (lambda t, x, ub: t.data_move(ub, x, 0, 1, -1, 0, 0), "burst is -1"),
    "element": (lambda t, x, ub: ub[128].set_as(1.0), "element 128 of ub, which has 128"),
    "unset": (
        lambda t, x, ub: ub[0].set_as(t.Scalar("float32", name="s")),
        "s is read before it has a value",
    ),
    "number": (lambda t, x, ub: t.vec_and(64, ub, ub, ub, 1, 8, 8, 8), "and takes whole numbers"),
}


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule_names_the_line_the_instruction_and_the_cause(name: str) -> None:
    write, cause = RULES[name]
    with pytest.raises(tik.TikError, match=r"test_tik\.py:\d+: \w+: ") as caught:
        program(write).run(np.zeros(128, np.float32))
    assert cause in str(caught.value)


def test_what_is_wrong_while_a_file_is_read() -> None:
    t = tik.Tik(tik.Dprofile())
    x = t.Tensor("float32", (8,), name="x", scope=tik.scope_gm)
    with pytest.raises(tik.TikError, match="has 262144 bytes, the tensors in it need 400000"):
        t.Tensor("float32", (100_000,), name="big", scope=tik.scope_ubuf)
    with pytest.raises(tik.TikError, match=r"no instruction 'mmadd' here; there are .*mmad"):
        t.mmadd(x, x)
    with pytest.raises(tik.TikError, match="missing a required argument: 'repeat_times'"):
        t.vec_abs(64, x, x)
    with pytest.raises(tik.TikError, match="use if_scope"), t.for_range(0, 4) as i:
        assert i > 2
    with pytest.raises(tik.TikError, match="follow an if_scope"), t.else_scope():
        pass
    with pytest.raises(tik.TikError, match="has to be in"):
        t.BuildCCE("k", [x], [t.Tensor("int32", (8,), name="y", scope=tik.scope_ubuf)])


def test_tensors_of_a_scope_are_freed_at_its_end() -> None:
    t = tik.Tik(tik.Dprofile())
    for _ in range(4):
        with t.new_stmt_scope():
            t.Tensor("uint8", (200 << 10,), name="large", scope=tik.scope_ubuf)


def test_the_debugger_runs_a_program() -> None:
    built = program(
        lambda t, x, ub: (t.vec_adds(64, ub, ub, 2.0, 2, 8, 8), t.data_move(x, ub, 0, 1, 16, 0, 0))
    )
    owner = built.outputs[0].owner
    (found,) = owner.tikdb.start_debug(feed_dict={"x": np.ones(128, np.float32)}, interactive=False)
    assert (found == 3).all()


def test_the_same_bytes_under_another_type_and_shape() -> None:
    def write(t: Any, x: Any, ub: Any) -> None:
        bits = ub.reinterpret_cast_to("int32").reshape((16, 8))
        with t.for_range(0, 16) as row:
            bits[row, 0].set_as(0x40000000)
        t.data_move(x, ub, 0, 1, 16, 0, 0)

    (found,) = program(write).run(np.ones(128, np.float32))
    np.testing.assert_array_equal(found.reshape(16, 8)[:, 0], 2.0)
    np.testing.assert_array_equal(found.reshape(16, 8)[:, 1:], 1.0)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(16, 32, 16), (30, 64, 48), (1, 16, 32)])
def test_a_product_in_tiles(rows: int, inner: int, columns: int) -> None:
    a, b = half(rows, inner), half(inner, columns)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    found = run("tiled_product", a, b, outputs=[((rows, columns), "float16")])
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3)


def cube_program(
    record: Callable[..., None], inputs: dict[str, np.ndarray], shape: tuple[int, ...], dtype: str
) -> Any:
    """A program whose inputs are moved to L1 whole; `record` adds the rest. Gives what it writes to `y`."""
    t = tik.Tik(tik.Dprofile())
    ports, tiles = [], []
    for name, array in inputs.items():
        kind = str(array.dtype)
        ports.append(t.Tensor(kind, array.shape, name=name, scope=tik.scope_gm))
        tiles.append(t.Tensor(kind, array.shape, name=f"{name}_l1", scope=tik.scope_cbuf))
        t.data_move(tiles[-1], ports[-1], 0, 1, array.nbytes // 32, 0, 0)
    y = t.Tensor(dtype, shape, name="y", scope=tik.scope_gm)
    record(t, y, *tiles)
    program = t.BuildCCE(kernel_name="cube", inputs=ports, outputs=[y])
    found = program.interpret(*inputs.values())[0]
    if "conv2d" in str(program.native):  # has no machine code
        return found
    np.testing.assert_allclose(program.native(list(inputs.values()))[0], found, rtol=1e-6)
    return found


def test_products_of_integers_add_up_and_lose_the_rows_that_were_added() -> None:
    a = RNG.integers(-128, 128, (2, 32, 32)).astype(np.int8)
    b = RNG.integers(-128, 128, (2, 48, 32)).astype(np.int8)
    bias = RNG.integers(-9, 9, 48).astype(np.int32)

    def record(t: Any, y: Any, a_l1: Any, b_l1: Any, bias_l1: Any) -> None:
        sums = t.Tensor("int32", (3, 32, 16), name="sums", scope=tik.scope_cbuf_out)
        t.matmul(sums, a_l1, b_l1, m=30, k=50, n=48)
        t.matmul(sums, a_l1, b_l1, 30, 50, 48, init_l1out=False)
        t.fixpipe(y, sums, 3, 60, 0, 0, extend_params={"bias": bias_l1, "relu": True})

    found = cube_program(record, {"a": a, "b": b, "bias": bias}, (3, 30, 16), "int32")
    x, w = (v.astype(np.int32).transpose(1, 0, 2).reshape(v.shape[1], -1)[:, :50] for v in (a, b))
    wanted = np.maximum(2 * (x[:30] @ w.T) + bias, 0)
    np.testing.assert_array_equal(found.transpose(1, 0, 2).reshape(30, 48), wanted)


@pytest.mark.parametrize(
    ("stride", "pad", "dilation"), [((1, 1), (0, 0, 0, 0), (1, 1)), ((2, 1), (1, 2, 0, 1), (1, 2))]
)
def test_a_convolution_in_tiles(
    stride: tuple[int, ...], pad: tuple[int, ...], dilation: tuple[int, ...]
) -> None:
    x, w = half(2, 7, 9, 16), half(2, 3, 2, 32, 16)
    left, right, top, bottom = pad
    high = (7 + top + bottom - dilation[0] * 2 - 1) // stride[0] + 1
    wide = (9 + left + right - dilation[1] - 1) // stride[1] + 1
    tall = -(-high * wide // 16) * 16

    def record(t: Any, y: Any, x_l1: Any, w_l1: Any) -> None:
        sums = t.Tensor("float32", (2, tall, 16), name="sums", scope=tik.scope_cbuf_out)
        t.conv2d(sums, x_l1, w_l1, x.shape, w.shape, stride, pad, dilation)
        t.fixpipe(y, sums, 2, high * wide * 2, 0, 0)

    found = cube_program(record, {"x": x, "w": w}, (2, high * wide, 16), "float32")
    image = np.pad(x.astype(np.float64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    wanted = np.zeros((high, wide, 32))
    for i, j in np.ndindex(3, 2):
        rows = slice(i * dilation[0], i * dilation[0] + (high - 1) * stride[0] + 1, stride[0])
        columns = slice(j * dilation[1], j * dilation[1] + (wide - 1) * stride[1] + 1, stride[1])
        wanted += np.einsum("chwk,cok->hwo", image[:, rows, columns], w[:, i, j].astype(np.float64))
    np.testing.assert_allclose(found.transpose(1, 0, 2).reshape(high, wide, 32), wanted, rtol=1e-4, atol=1e-4)


def test_rules_of_the_cube_unit_are_errors_that_name_the_cause() -> None:
    def product(dtype: str, scope: str) -> None:
        t = tik.Tik(tik.Dprofile())
        y = t.Tensor("float32", (1, 16, 16), name="y", scope=tik.scope_gm)
        tiles = [t.Tensor(dtype, (1, 16, 16), name=n, scope=scope) for n in "ab"]
        sums = t.Tensor("float32", (1, 16, 16), name="sums", scope=tik.scope_cbuf_out)
        t.matmul(sums, *tiles, 16, 16, 16)
        t.fixpipe(y, sums, 1, 32, 0, 0)
        t.BuildCCE(kernel_name="cube", inputs=[], outputs=[y]).run()

    with pytest.raises(tik.TikError, match="no product of float32 and float32"):
        product("float32", tik.scope_cbuf)
    with pytest.raises(tik.TikError, match=r"is in local\.UB, not in local\.L1"):
        product("float16", tik.scope_ubuf)


def fractal_program(write: Callable[[tik.Tik, Any, Any], None], size: int, made: int) -> Any:
    """A program of float16 whose input is in L1 and whose output is in the Unified Buffer while `write` works."""
    t = tik.Tik(tik.Dprofile())
    x = t.Tensor("float16", (size,), name="x", scope=tik.scope_gm)
    y = t.Tensor("float16", (made,), name="y", scope=tik.scope_gm)
    held = t.Tensor("float16", (size,), name="held", scope=tik.scope_cbuf)
    out = t.Tensor("float16", (made,), name="out", scope=tik.scope_ubuf)
    t.data_move(held, x, 0, 1, size // 16, 0, 0)
    t.vec_dup(128, out, 0, made // 128, 8)
    write(t, held, out)
    t.data_move(y, out, 0, 1, made // 16, 0, 0)
    return t.BuildCCE(kernel_name="fractals", inputs=[x], outputs=[y])


@pytest.mark.parametrize("left", [-1, 1])
def test_elements_of_a_filter_follow_each_other_in_repeat_mode_0(left: int) -> None:
    def write(t: tik.Tik, held: Any, out: Any) -> None:
        t.load3dv1(out, held, [1, 0, 1, 0], 4, 4, 0, 0, 0, left, -1, 2, 1, 2, 2, 1, 1, 1, 0, 8)

    x = half(2, 4, 4, 16)
    padded = np.pad(x, ((0, 0), (1, 0), (1, 0), (0, 0)))
    rows = [(i, j) for i in range(4) for j in range(0, 3, 2)][(left + 1) // 2 :]  # the corners of windows
    wanted = np.zeros((8, 16, 16), np.float16)
    for repeat, (block, i, j) in enumerate(np.ndindex(2, 2, 2)):
        for row, (top, side) in enumerate(rows):
            wanted[repeat, row] = padded[block, top + i, side + j]
    made = fractal_program(write, x.size, 8 * 256)
    found = made.run(x.reshape(-1))[0].reshape(8, 16, 16)
    np.testing.assert_array_equal(found[:, : len(rows)], wanted[:, : len(rows)])


def test_windows_added_back_count_how_often_a_pixel_is_read() -> None:
    def write(t: tik.Tik, held: Any, out: Any) -> None:
        ones = t.Tensor("float16", (256,), name="ones", scope=tik.scope_ubuf)
        t.vec_dup(128, ones, 1, 2, 8)
        for i, j in np.ndindex(3, 3):
            t.col2img(out, ones, (0, 0, 0, 0), 6, 6, j, i, 0, 0, 1, 1, 3, 3, 1, 1, 1)

    found = fractal_program(write, 256, 1152).run(half(256))[0][: 36 * 16].reshape(6, 6, 16)
    once = np.minimum(np.minimum(np.arange(1, 7), np.arange(6, 0, -1)), 3)
    np.testing.assert_array_equal(found, np.broadcast_to(np.outer(once, once)[..., None], (6, 6, 16)))


def test_a_part_of_a_matrix_of_windows_is_multiplied() -> None:
    t = tik.Tik(tik.Dprofile())
    x = t.Tensor("float16", (1, 6, 6, 16), name="x", scope=tik.scope_gm)
    w = t.Tensor("float16", (4, 1, 16, 16), name="w", scope=tik.scope_gm)
    y = t.Tensor("float32", (16, 16), name="y", scope=tik.scope_gm)
    held = t.Tensor("float16", (1, 6, 6, 16), name="held", scope=tik.scope_cbuf)
    rows = t.Tensor("float16", (1, 4, 16, 16), name="rows", scope=tik.scope_ca)
    columns = t.Tensor("float16", (4, 1, 16, 16), name="columns", scope=tik.scope_cb)
    sums = t.Tensor("float32", (16, 16), name="sums", scope=tik.scope_cc)
    out = t.Tensor("float32", (16, 16), name="out", scope=tik.scope_ubuf)
    t.data_move(held, x, 0, 1, 36, 0, 0)
    t.load3dv2(rows, held, [0, 0, 0, 0], 6, 6, 16, 64, 16, 32, 0, 1, 1, 3, 3, 1, 1)
    t.load2dv2(columns, w, 0, 4, 0, 1, 0)
    t.mmad(sums, rows, columns, 16, 64, 16, 0)
    t.data_move(out, sums, 0, 1, 1, 0, 0)
    t.data_move(y, out, 0, 1, 32, 0, 0)
    picture, weights = half(1, 6, 6, 16), half(4, 1, 16, 16)
    found = t.BuildCCE(kernel_name="part", inputs=[x, w], outputs=[y]).run(picture, weights)[0]
    windows = np.lib.stride_tricks.sliding_window_view(picture[0], (3, 3), axis=(0, 1)).reshape(16, 16, 9)
    matrix = windows.transpose(0, 2, 1).reshape(16, 144)[:, 32:96].astype(np.float32)
    wanted = matrix @ weights.transpose(0, 3, 1, 2).reshape(64, 16).astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("write", "cause"),
    [
        (lambda t, held, out: t.load2dv1(out, held, 0, 1, 1, 0), "no fractals from local.L1 to local.UB"),
        (lambda t, held, out: t.mmad(out, held, held, 16, 16, 16, 0), "no product of float16 and float16"),
        (lambda t, held, out: t.load3dv1(out, held, [0], 4, 4, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1), "border"),
        (lambda t, held, out: t.load3dv1(out, held, [0, 0, 0, 0], 9, 9, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1),
         "needs 1296 elements"),
        (lambda t, held, out: t.load3dv1(out, held, [0, 0, 0, 0], 2, 2, 0, 0, 0, 0, 0, 1, 1, 3, 3, 1, 1, 1, 1, 1),
         "reaches over"),
    ],
)  # fmt: skip
def test_rules_of_fractals_are_errors_that_name_the_cause(write: Any, cause: str) -> None:
    with pytest.raises(tik.TikError, match=r"test_tik\.py:\d+: \w+: ") as caught:
        fractal_program(write, 256, 1024).run(half(256))
    assert cause in str(caught.value)
