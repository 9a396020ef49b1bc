"""Movement of data: transposes, slices, pads, concatenations, gathers, windows, of every element size."""

from __future__ import annotations

import numpy as np
import pytest

import tbe
from tests.tbe.running import check, run

TARGETS = ("host", "portable", "avx2")
SIZES = ("float32", "float64", "bfloat16", "int8")


def ph(shape, dtype="float32") -> tbe.Tensor:
    return tbe.placeholder(shape, dtype)


def numbers(t: tbe.Tensor) -> np.ndarray:
    return (np.arange(t.size) % 101).astype(tbe.numpy_dtype(t.dtype)).reshape(t.shape)


def check_all(inputs, outputs, targets=TARGETS) -> None:
    for target in targets:
        if tbe.runs_here(target):
            check(inputs, outputs, {t: numbers(t) for t in inputs}, target, rtol=1e-6)


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((40, 35), (1, 0)),
        ((16, 16), (1, 0)),
        ((3, 17, 33), (0, 2, 1)),
        ((5, 32, 64), (2, 0, 1)),
        ((2, 7, 9, 12), (0, 3, 1, 2)),
        ((4, 4), (1, 0)),
        ((5, 300), (1, 0)),
    ],
)
def test_transpose(dtype, shape, perm) -> None:
    x = ph(shape, dtype)
    check_all([x], [tbe.transpose(x, perm)], ("host", "portable"))


def test_transpose_with_arithmetic_and_broadcast() -> None:
    x, y, row, column = ph((40, 35)), ph((35, 40)), ph((40,)), ph((35, 1))
    check_all([x, y, row, column], [tbe.transpose(x, (1, 0)) * row + column - y])


def test_long_transposes() -> None:
    for shape in ((33, 9000), (9000, 33)):
        x = ph(shape)
        check_all([x], [tbe.transpose(x, (1, 0))], ("host",))


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("step", [2, 3, 4, 5, -1, -2])
def test_strided_slices(dtype, step) -> None:
    x = ph((6, 71), dtype)
    start = 0 if step > 0 else 70
    piece = tbe.slice(x, (5, start), (-1, step), (6, 71 // abs(step)))
    check_all([x], [piece], ("host", "portable"))
    check_all([x], [piece + piece], ("host",))


def test_one_lane_left_over_is_stored_narrow() -> None:
    """17 = 16 + 1 lanes of a narrowed type: the last one must not be written wider than it is."""
    for dtype in ("bfloat16", "float16", "int16"):
        x = ph((6, 70), dtype)
        piece = tbe.slice(x, (0, 0), (1, 4), (6, 17))
        check_all([x], [tbe.cast(tbe.cast(piece, "float32") * 3.0, dtype)])


@pytest.mark.parametrize(
    ("low", "high"), [((0, 1, 2), (1, 0, 3)), ((0, 0, 5), (0, 0, 0)), ((2, 2, 0), (2, 2, 0))]
)
def test_pad(low, high) -> None:
    x = ph((4, 5, 18))
    check_all([x], [tbe.pad(x, low, high, 7.0) + 1.0])
    top = tbe.reduce("max", tbe.pad(x, low, high, -3.0), 2, True)
    check_all([x], [tbe.pad(x, low, high, -3.0) - top])


def test_pad_of_a_view() -> None:
    x = ph((4, 30))
    check_all([x], [tbe.pad(tbe.reshape(tbe.transpose(x, (1, 0)), (8, 15)), (1, 1), (1, 2), 5.0)])


def test_concat_along_each_axis() -> None:
    x, last, middle, first = ph((4, 7, 20)), ph((4, 7, 3)), ph((4, 2, 20)), ph((1, 7, 20))
    check_all([x, last], [tbe.concat([x, last, x], 2) * 2.0])
    check_all([x, middle], [tbe.concat([middle, x], 1)])
    check_all([x, first], [tbe.concat([x, first, first], 0)])
    inner = tbe.concat([x, last], 2)
    check_all([x, last], [inner - tbe.reduce("max", inner, 2, True)])
    pair = [tbe.reshape(t, (4, 7, 20, 1)) for t in (x, x + 1.0)]
    check_all([x], [tbe.concat(pair, 3)])


@pytest.mark.parametrize("axis", [0, 1])
def test_concat_of_hundreds_of_tensors(axis: int) -> None:
    parts = [ph((2, 3)), ph((1, 3) if axis == 0 else (2, 1))]
    many = [parts[i % 3 == 0] for i in range(600)]
    check_all(parts, [tbe.concat(many, axis)])


def test_rotary_embedding() -> None:
    q, cosine, sine = ph((2, 9, 3, 32)), ph((9, 1, 16)), ph((9, 1, 16))
    a = tbe.slice(q, (0, 0, 0, 0), (1,) * 4, (2, 9, 3, 16))
    b = tbe.slice(q, (0, 0, 0, 16), (1,) * 4, (2, 9, 3, 16))
    check_all([q, cosine, sine], [tbe.concat([a * cosine - b * sine, b * cosine + a * sine], 3)])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_take(axis) -> None:
    x, i = ph((4, 6, 20)), ph((5,), "int32")
    index = np.array([-1, 0, 99, -99, 2], np.int32)
    for target in TARGETS:
        check([x, i], [tbe.take(x, i, axis)], {x: numbers(x), i: index}, target)


def test_take_with_batch_dims() -> None:
    x, i = ph((4, 6, 20)), ph((4, 3), "int64")
    index = np.array([[0, 5, -1]] * 4)
    check([x, i], [tbe.take(x, i, 1, 1), tbe.take(x, i, 1, 1) * 2.0], {x: numbers(x), i: index})
    check([x, i], [tbe.take(x, i, 2, 1)], {x: numbers(x), i: index})


def test_data_dependent_indices_are_clamped() -> None:
    x, i = ph((10,)), ph((64,), "int64")
    wild = np.array([0, 9, 10, -1, 2**62, -(2**62), 2**63 - 1, -(2**63)] * 8)
    t = tbe.compute((64,), lambda k: x[i[k] * 3 + 1])
    check([x, i], [t], {x: numbers(x), i: np.clip(wild, -(2**60), 2**60)})
    for extreme in (tbe.compute((64,), lambda k: x[i[k]]), tbe.take(x, i, 0)):
        (got,) = run([x, i], [extreme], {x: numbers(x), i: wild})
        assert set(got.tolist()) <= set(range(10))


def test_windows_and_resizing() -> None:
    x = ph((2, 5, 5, 12))
    nearest = tbe.compute((2, 10, 10, 12), lambda n, h, w, c: x[n, h // 2, w // 2, c])
    check_all([x], [nearest])
    blur = tbe.compute(
        (2, 5, 5, 12), lambda n, h, w, c: x[n, h - 1, w, c] + x[n, h + 1, w, c] * 2.0 + x[n, h, w, c]
    )
    check_all([x], [blur])

    def scaled(h):
        return tbe.cast(tbe.unary("floor", tbe.cast(h, "float32") * 0.55), "int32")

    check_all([x], [tbe.compute((2, 9, 9, 12), lambda n, h, w, c: x[n, scaled(h), (w * 5) // 9, c])])
    check_all([x], [tbe.compute((2, 12, 9, 9), lambda n, c, h, w: x[n, scaled(h), scaled(w), c])])


def test_reshapes_that_do_not_line_up() -> None:
    x = ph((6, 10))
    check_all([x], [tbe.transpose(tbe.reshape(tbe.transpose(x, (1, 0)), (4, 15)), (1, 0))])
    y = ph((4, 37, 50))
    check_all([y], [tbe.reshape(y, (50, 37, 4)) + 1.0])


def test_iota_and_constants_need_no_input() -> None:
    check(
        [], [tbe.iota((5, 40), 1, "float32") * 2.0 + tbe.cast(tbe.iota((5, 40), 0, "int64"), "float32")], {}
    )
    check([], [tbe.broadcast_to(tbe.constant(True, "bool"), (33,))], {})


def test_neighbouring_loops_become_one() -> None:
    x, y = ph((4, 8, 16, 32)), ph((4, 8, 16, 32))
    (nest,) = tbe.schedule([x, y], [x + y]).nests
    assert [v.extent for v in nest.kept] == [4 * 8 * 16 * 32]
    bias = ph((32,))
    (nest,) = tbe.schedule([x, bias], [x + bias]).nests
    assert [v.extent for v in nest.kept] == [4 * 8 * 16, 32]
