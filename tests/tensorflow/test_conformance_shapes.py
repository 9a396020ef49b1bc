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
