"""Conversions of element types give TensorFlow's numbers, also where the type of the result has no place for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter
from tests.tensorflow.comparing import CPU, NPU

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
BOUNDS = [2.0**n for n in (7, 8, 15, 16, 31, 32, 63, 64)]
NUMBERS = [300.0, -5.0, 0.5, -1.5, 127.9, -129.0, *BOUNDS, *(-b for b in BOUNDS), 7e4, -7e4, 5e9, -5e9, 1e30]
SIZES = [(), (2,), (3, 9), (64,), (5, 3, 7)]  # fewer than are converted at a time, as many, and a rest


def numbers(dtype: str, shape: tuple[int, ...]) -> Any:
    """Numbers around the bounds of all integers, as many as fit a shape."""
    with np.errstate(over="ignore"):
        values = np.resize([*NUMBERS, np.inf, -np.inf, np.nan], shape)
        return values.astype(tf.as_dtype(dtype).as_numpy_dtype)


def converted(x: Any, to: str, device: str) -> list[Any]:
    """x in another type: one operator, first and once it is compiled, a function, a function of a constant."""
    with tf.device(device):
        given = tf.constant(x)
        eager = [tf.cast(given, to).numpy() for _ in range(tf_adapter.options.eager_threshold + 1)]
        return [
            eager[0],
            eager[-1],
            tf.function(lambda v: tf.cast(v, to), autograph=False)(given).numpy(),
            tf.function(lambda: tf.cast(tf.constant(x), to), autograph=False)().numpy(),
        ]


@pytest.mark.parametrize("to", INTS)
@pytest.mark.parametrize("source", FLOATS)
def test_floats_become_the_same_integers(source: str, to: str) -> None:
    for shape in SIZES:
        x = numbers(source, shape)
        with tf.device(CPU):
            wanted = tf.cast(tf.constant(x), to).numpy()
        for found in converted(x, to, NPU):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("source", ["int64", "uint64", "int8", "bool"])
def test_integers_become_the_same_numbers(source: str) -> None:
    x = np.array([0, 1, 2**7, 2**31, 2**32 + 5, 2**53 + 1, 2**63 - 1]).astype(source)
    for to in {*INTS, *FLOATS, "bool"} - {source}:
        with tf.device(CPU):
            wanted = tf.cast(tf.constant(x), to).numpy()
        for found in converted(x, to, NPU):
            np.testing.assert_array_equal(found, wanted)


def test_saturate_cast_limits_numbers() -> None:
    for to in ("uint8", "int16"):
        function = tf.function(lambda v, to=to: tf.saturate_cast(v, to), autograph=False)
        with tf.device(NPU):
            found = function(tf.constant([300.0, -5.0, 1e30, -1e30]))
        most, least = tf.as_dtype(to).max, tf.as_dtype(to).min
        assert found.numpy().tolist() == [min(300, most), max(-5, least), most, least]


def test_digits_are_cut_off_where_that_is_asked_for() -> None:
    function = tf.function(lambda v: tf.raw_ops.Cast(x=v, DstT=tf.bfloat16, Truncate=True))
    with tf.device(NPU):
        found = function(tf.constant([1.999, -1.999]))
    np.testing.assert_array_equal(tf.cast(found, tf.float32), [1.9921875, -1.9921875])
