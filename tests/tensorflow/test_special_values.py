"""NaN, infinities and poles through functions on the NPU are what TensorFlow makes of them on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter  # noqa: F401  (registers the NPU)

_SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0, -2.0, 7.0] * 3, np.float32)


def _both(function: Callable[..., Any], *arrays: np.ndarray) -> tuple[Any, Any]:
    """The results of TensorFlow on the CPU, and of a function on the NPU."""
    with tf.device("/CPU:0"):
        expected = [np.asarray(t) for t in tf.nest.flatten(function(*map(tf.constant, arrays)))]
    with tf.device("/NPU:0"):
        traced = tf.function(function, autograph=False)
        found = [np.asarray(t) for t in tf.nest.flatten(traced(*map(tf.constant, arrays)))]
    return expected, found


@pytest.mark.parametrize(
    "name", ["SqrtGrad", "RsqrtGrad", "InvGrad", "ReciprocalGrad", "TanhGrad", "SigmoidGrad"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_at_poles(name: str, dtype: Any) -> None:
    y, dy = (a.astype(dtype).ravel() for a in np.meshgrid(_SPECIAL[:8], _SPECIAL[:8]))
    if name in ("TanhGrad", "SigmoidGrad"):  # its kernels take zeros of either sign in different orders
        dy = np.abs(dy)
    expected, found = _both(lambda y, dy: getattr(tf.raw_ops, name)(y=y, dy=dy), y, dy)
    np.testing.assert_allclose(found[0], expected[0], 1e-6)


@pytest.mark.parametrize("name", ["ReluGrad", "Relu6Grad", "LeakyReluGrad", "EluGrad", "SeluGrad"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_gradients_that_are_not_finite_through_activations(name: str, dtype: str) -> None:
    """TensorFlow multiplies by the slope, which may be zero."""
    x, dy = (a.ravel() for a in np.meshgrid(_SPECIAL[:8], _SPECIAL[:8]))
    second = "outputs" if name in ("EluGrad", "SeluGrad") else "features"

    def slopes(x: Any, dy: Any) -> Any:
        arguments = {"gradients": tf.cast(dy, dtype), second: tf.cast(x, dtype)}
        return tf.cast(getattr(tf.raw_ops, name)(**arguments), tf.float64)

    expected, found = _both(slopes, x, dy)
    np.testing.assert_allclose(found[0], expected[0], {"float16": 1e-3, "bfloat16": 1e-2}.get(dtype, 1e-6))


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "clip": lambda x: tf.clip_by_value(x, -0.5, 0.75),
    "hard_sigmoid": lambda x: tf.clip_by_value(x * 0.2 + 0.5, 0.0, 1.0),
    "maximum": lambda x: tf.maximum(x, 0.25),
    "minimum": lambda x: tf.minimum(x, 0.25),
    "leaky_relu": tf.nn.leaky_relu,
}


@pytest.mark.parametrize("name", _ACTIVATIONS)
@pytest.mark.parametrize("added", [False, True])
def test_activations_after_products(name: str, added: bool) -> None:
    """As the epilogue of a product, alone and after the sum with another product."""
    activation = _ACTIVATIONS[name]
    x = np.zeros((6, 24), np.float32)
    x[2], x[4] = _SPECIAL, _SPECIAL[::-1]
    w = np.eye(24, dtype=np.float32)[:, ::-1].copy()
    w[w == 0] = 1e-3

    def function(x: Any, w: Any) -> Any:
        y = tf.matmul(x[:, :24], w)
        return activation(y + tf.matmul(tf.reverse(x, [0]), w)) if added else activation(y)

    expected, found = _both(function, x, w)
    np.testing.assert_allclose(found[0], expected[0], 1e-4, 1e-5)
    assert np.isnan(expected[0]).any() and not np.isnan(expected[0]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("known", [False, True])
def test_each_nan_is_unique(dtype: Any, known: bool) -> None:
    values = np.array([1, np.nan, 1, 0.0, np.nan, 0.0, np.inf, np.inf], dtype)

    def function(x: Any) -> Any:
        x = tf.constant(values) if known else x
        return tf.unique(x), tf.unique_with_counts(x, tf.int64)

    expected, found = _both(function, values)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
