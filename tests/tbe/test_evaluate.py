"""The interpreter agrees with NumPy on structured nodes and keeps the documented edge rules."""

from __future__ import annotations

import numpy as np
import pytest

import tbe


def run(output: tbe.Tensor, values: dict) -> np.ndarray:
    return tbe.evaluate([output], values)[0]


@pytest.fixture
def x() -> tuple[tbe.Tensor, np.ndarray]:
    return tbe.placeholder((2, 3, 4), "float32", "x"), np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 7


def test_structured_nodes_match_numpy(x):
    t, a = x
    cases = [
        (tbe.transpose(t, (2, 0, 1)), a.transpose(2, 0, 1)),
        (tbe.reshape(t, (6, 4)), a.reshape(6, 4)),
        (tbe.slice(t, (1, 2, 3), (1, -2, -1), (1, 2, 4)), a[1:, ::-2, ::-1]),
        (tbe.pad(t, (0, 1, 0), (0, 0, 2), 5.0), np.pad(a, ((0, 0), (1, 0), (0, 2)), constant_values=5)),
        (tbe.concat([t, t], 1), np.concatenate([a, a], 1)),
        (tbe.reduce("sum", t, (0, 2)), a.sum((0, 2))),
        (tbe.reduce("argmax", t, 2, True), a.argmax(2, keepdims=True)),
        (tbe.scan("sum", t, 1), a.cumsum(1)),
        (tbe.scan("sum", t, 1, exclusive=True, reverse=True), a[:, ::-1].cumsum(1)[:, ::-1] - a),
        (
            tbe.broadcast_to(tbe.reduce("max", t, 2, True), (2, 3, 4)),
            np.broadcast_to(a.max(2, keepdims=True), a.shape),
        ),
        (tbe.iota((2, 3), 1, "int32"), np.tile(np.arange(3, dtype=np.int32), (2, 1))),
    ]
    for node, expected in cases:
        np.testing.assert_array_equal(run(node, {t: a}), expected, strict=False)


def test_take_wraps_negative_and_clamps(x):
    t, a = x
    i = tbe.placeholder((4,), "int32")
    index = np.array([-1, 0, 99, -99], np.int32)
    np.testing.assert_array_equal(run(tbe.take(t, i, 1), {t: a, i: index}), a[:, [2, 0, 2, 0]])


def test_take_with_batch_dims(x):
    t, a = x
    i = tbe.placeholder((2, 2), "int64")
    index = np.array([[0, 2], [1, 1]])
    expected = np.stack([a[b][index[b]] for b in range(2)])
    np.testing.assert_array_equal(run(tbe.take(t, i, 1, batch_dims=1), {t: a, i: index}), expected)


def test_compute_reads_with_clamped_indices(x):
    t, a = x
    out = tbe.compute((6, 4), lambda i, j: tbe.select(i < 3, t[0, i - 1, j], t[1, i, j // 2]) * 2.0)
    expected = 2 * np.stack([a[0, 0], a[0, 0], a[0, 1], *[a[1, 2][[0, 0, 1, 1]]] * 3])
    np.testing.assert_array_equal(run(out, {t: a}), expected)


def test_integer_division_never_fails():
    a, b = tbe.placeholder((5,), "int32"), tbe.placeholder((5,), "int32")
    values = {a: np.array([7, -7, -7, 5, -(2**31)], np.int32), b: np.array([2, 2, -2, 0, -1], np.int32)}
    assert run(tbe.binary("div", a, b), values).tolist() == [3, -3, 3, 0, -(2**31)]
    assert run(tbe.binary("floordiv", a, b), values).tolist() == [3, -4, 3, 0, -(2**31)]
    assert run(tbe.binary("mod", a, b), values).tolist() == [1, 1, -1, 0, 0]
    assert run(tbe.binary("fmod", a, b), values).tolist() == [1, -1, -1, 0, 0]


def test_float_to_int_saturates():
    x = tbe.placeholder((5,), "float32")
    values = {x: np.array([np.nan, np.inf, -1e30, 3.9, -3.9], np.float32)}
    assert run(tbe.cast(x, "int8"), values).tolist() == [0, 127, -128, 3, -3]
    assert run(tbe.cast(x, "uint16"), values).tolist() == [0, 65535, 0, 3, 0]


def test_mistakes_are_refused():
    f, i = tbe.placeholder((4,), "float32"), tbe.placeholder((4,), "int32")
    with pytest.raises(TypeError, match="one dtype"):
        tbe.binary("add", f, i)
    with pytest.raises(TypeError, match="does not take"):
        tbe.unary("exp", i)
    with pytest.raises(ValueError, match="unknown unary"):
        tbe.unary("frobnicate", f)
    with pytest.raises(ValueError, match="broadcast"):
        tbe.binary("add", f, tbe.placeholder((3,), "float32"))
    with pytest.raises(ValueError, match="slice reads"):
        tbe.slice(f, (2,), (1,), (3,))
    with pytest.raises(ValueError, match="no value"):
        tbe.evaluate([f], {})


@pytest.mark.parametrize("shape", [(700, 333), (32, 4096), (70000, 1), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_transposed_matrices_are_copied_whole(shape: tuple[int, int], dtype: str) -> None:
    x = tbe.placeholder(shape, dtype, "x")
    values = np.arange(shape[0] * shape[1], dtype=dtype).reshape(shape)
    found = run(tbe.transpose(x, (1, 0)), {x: values})
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, values.T)
