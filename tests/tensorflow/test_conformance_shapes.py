"""Operators over shapes and element types that nobody chose: functions on the NPU against the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_adapter")

SETTINGS = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
TYPES = st.sampled_from(["float32", "float64", "int32", "int64", "float16"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


def _values(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    numbers = np.random.default_rng(seed).integers(-8, 9, shape)
    return (numbers / (1 if "int" in dtype else 4)).astype(dtype)


def _agree(function, *arrays: np.ndarray) -> None:
    with tf.device("/CPU:0"):
        wanted = tf.nest.flatten(tf.function(function)(*map(tf.constant, arrays)))
    with tf.device("/NPU:0"):
        found = tf.nest.flatten(tf.function(function)(*map(tf.constant, arrays)))
        eager = tf.nest.flatten(function(*map(tf.constant, arrays)))
    for ours, once, theirs in zip(found, eager, wanted, strict=True):
        tolerance = 2e-2 if theirs.dtype == tf.float16 else 2e-5
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(once.numpy(), theirs.numpy(), rtol=tolerance, atol=tolerance)


@SETTINGS
@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4), TYPES, st.integers(0, 99))
def test_broadcast_arithmetic(shapes, dtype: str, seed: int) -> None:
    a, b = (_values(s, dtype, seed + i) for i, s in enumerate(shapes.input_shapes))
    _agree(lambda x, y: (x + y, x * y - x, tf.maximum(x, y), x < y, tf.where(x > y, x, y)), a, b)


@SETTINGS
@given(SHAPES, TYPES, st.data())
def test_reductions_and_movements(shape: tuple[int, ...], dtype: str, data) -> None:
    axes = data.draw(st.lists(st.integers(0, max(len(shape) - 1, 0)), unique=True, max_size=len(shape)))
    perm = data.draw(st.permutations(range(len(shape))))
    keep = data.draw(st.booleans())
    x = _values(shape, dtype, 7)

    def run(v):
        moved = tf.transpose(v, perm)
        return (
            tf.reduce_sum(v, axes, keepdims=keep),
            tf.reduce_max(v, axes),
            moved,
            tf.reshape(moved, [-1]),
            -v,
        )

    _agree(run, x)


@SETTINGS
@given(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.booleans(), st.booleans())
def test_products(m: int, k: int, n: int, ta: bool, tb: bool) -> None:
    a = _values((2, k, m) if ta else (2, m, k), "float32", 1)
    b = _values((n, k) if tb else (k, n), "float32", 2)
    _agree(lambda x, y: tf.matmul(x, y, transpose_a=ta, transpose_b=tb), a, b)


@SETTINGS
@given(
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from(["SAME", "VALID"]),
)
def test_convolutions(height: int, width: int, kernel: int, stride: int, padding: str) -> None:
    if padding == "VALID" and min(height, width) < kernel:
        return
    x, w = _values((1, height, width, 2), "float32", 3), _values((kernel, kernel, 2, 3), "float32", 4)
    _agree(lambda v, f: tf.nn.relu(tf.nn.conv2d(v, f, stride, padding)), x, w)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scatter", [tf.tensor_scatter_nd_max, tf.tensor_scatter_nd_min])
def test_not_a_number_in_scatters(scatter, dtype: str) -> None:
    """One that is there stays, one among the updates does not count."""
    x = np.array([[np.nan, 1.0], [2.0, np.nan]], np.float32)
    updates = np.array([[-3.0, np.nan], [np.nan, 5.0], [4.0, -4.0]], np.float32)

    def run(x, updates):
        y = scatter(tf.cast(x, dtype), [[0], [1], [1]], tf.cast(updates, dtype))
        return tf.cast(y, tf.float32)

    _agree(run, x, updates)


def test_the_tails_of_the_normal_distribution() -> None:
    p = np.float32(
        [
            0,
            1e-37,
            1e-30,
            1e-12,
            1e-7,
            0.0017,
            0.0019,
            0.1,
            0.5,
            0.9,
            0.9985,
            1 - 2**-24,
            1,
            -1,
            -1e-9,
            -1e-30,
            2,
        ]
    )
    _agree(tf.math.ndtri, np.append(p, np.float32(np.nan)))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_gradients_of_an_empty_batch(padding: str) -> None:
    """Known at compile time, so they are computed there."""

    def run(w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            total = tf.reduce_sum(tf.nn.conv2d(tf.zeros([0, 4, 4, 3]), w, 1, padding))
        return total, tape.gradient(total, w)

    with tf.device("/NPU:0"):
        total, slope = tf.function(run)(tf.ones([2, 2, 3, 5]))
    assert total.numpy() == 0
    np.testing.assert_array_equal(slope.numpy(), np.zeros([2, 2, 3, 5], np.float32))


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_outer_products_of_a_batch_and_one_row(batch: tuple[int, ...], rows: int) -> None:
    a, b = _values((*batch, 1, rows), "float32", 1), _values((*(1 for _ in batch), 1, 2), "float32", 2)
    _agree(lambda x, y: tf.matmul(x, y, transpose_a=True), a, b)
