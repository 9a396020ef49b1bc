"""Integers of every type, at the ends of their ranges: functions on the NPU wrap around where TensorFlow does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter  # noqa: F401  (registers the NPU)

_INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
_ROWS = np.array([2, 0, 2, 0])
_CASES: dict[str, Callable[[Any], Any]] = {
    **{
        f"{name} over {axes}": lambda x, name=name, axes=axes: getattr(tf, f"reduce_{name}")(x, axes)
        for name in ("sum", "mean", "prod", "max", "min")
        for axes in (None, 1, [0], [0, 1])
    },
    **{
        f"segment_{name}": lambda x, name=name: getattr(tf.math, f"segment_{name}")(x, np.sort(_ROWS))
        for name in ("sum", "mean", "prod", "max", "min")
    },
    **{
        f"unsorted_segment_{name}": lambda x, name=name: getattr(tf.math, f"unsorted_segment_{name}")(
            x, _ROWS, 4
        )
        for name in ("sum", "prod", "max", "min")
    },
    "mean of products": lambda x: tf.reduce_mean(x * x, 1),
    "cumsum": lambda x: tf.cumsum(x, 1, exclusive=True),
    "cumprod": lambda x: tf.math.cumprod(x, 0, reverse=True),
    "matmul": lambda x: tf.matmul(x, x, transpose_b=True),
    "einsum": lambda x: tf.einsum("ij,kj->ik", x, x),
    "conv2d": lambda x: tf.nn.conv2d(
        tf.reshape(x, (1, 4, 3, 2)), tf.reshape(x[:2], (2, 1, 2, 3)), 1, "VALID"
    ),
    "add_n": lambda x: tf.add_n([x, x, x]),
    "squared_difference": lambda x: tf.math.squared_difference(x, x[:1]),
    "pow": lambda x: x ** tf.constant(3, x.dtype),
    "scatter_nd": lambda x: tf.scatter_nd(_ROWS[:, None], x, (4, 6)),
    "tensor_scatter_nd_add": lambda x: tf.tensor_scatter_nd_add(x, _ROWS[:, None], x),
    "bincount": lambda x: tf.math.bincount([0, 1, 1, 0], weights=x[:, 0]),
    "scan": lambda x: tf.scan(lambda a, b: a * b + a, x),
}


def _value(function: Callable[[Any], Any], device: str, x: np.ndarray) -> np.ndarray | None:
    """The result; None if TensorFlow has no kernel for the type."""
    try:
        with tf.device(device):
            return np.asarray(tf.function(function, autograph=False)(tf.constant(x)))
    except (
        tf.errors.InvalidArgumentError,
        tf.errors.UnimplementedError,
        tf.errors.NotFoundError,
        TypeError,
        ValueError,
    ):
        if device == "/CPU:0":
            return None
        raise


@pytest.mark.parametrize("dtype", _INTEGERS)
def test_integers_wrap_around_where_those_of_tensorflow_do(dtype: str) -> None:
    ends = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(ends.min, ends.max, (4, 6), np.dtype(dtype), endpoint=True)
    wrong, compared = [], 0
    for name, function in _CASES.items():
        expected = _value(function, "/CPU:0", x)
        if expected is None:
            continue
        found = _value(function, "/NPU:0", x)
        assert found is not None
        compared += 1
        if found.dtype != expected.dtype or not np.array_equal(found, expected):
            wrong.append((name, found, expected))
    assert not wrong and compared > len(_CASES) // 2
