"""Explicit borders of windows: what TensorFlow refuses raises its error in functions, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.tensorflow.comparing import CPU, NPU, same

Borders = list[int]


def gradient_of(borders: Borders) -> Any:
    """The gradient of a result of 2 x 2 windows over 4 x 4 pixels."""
    return tf.ones((1, 3 + sum(borders[2:4]), 3 + sum(borders[4:6]), 1))


def options(borders: Borders) -> dict[str, Any]:
    return {"strides": [1, 1, 1, 1], "padding": "EXPLICIT", "explicit_paddings": borders}


OPERATORS: dict[str, Callable[[Any, Any, Borders], Any]] = {
    "Conv2D": lambda x, w, p: tf.raw_ops.Conv2D(input=x, filter=w, **options(p)),
    "DepthwiseConv2dNative": lambda x, w, p: tf.raw_ops.DepthwiseConv2dNative(
        input=x, filter=w, **options(p)
    ),
    "Conv2DBackpropInput": lambda x, w, p: tf.raw_ops.Conv2DBackpropInput(
        input_sizes=[1, 4, 4, 1], filter=w, out_backprop=gradient_of(p), **options(p)
    ),
    "Conv2DBackpropFilter": lambda x, w, p: tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=[2, 2, 1, 1], out_backprop=gradient_of(p), **options(p)
    ),
    "MaxPool": lambda x, w, p: tf.raw_ops.MaxPool(input=x, ksize=[1, 2, 2, 1], **options(p)),
    "MaxPoolGrad": lambda x, w, p: tf.raw_ops.MaxPoolGrad(
        orig_input=x, orig_output=gradient_of(p), grad=gradient_of(p), ksize=[1, 2, 2, 1], **options(p)
    ),
}
BORDERS: list[Borders] = [[0, 0, 1, 0, 0, 1, 0, 0], [0, 0, 2, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 3, 0, 0]]
BATCH: Borders = [1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("borders", [*BORDERS, BATCH], ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_borders_are_those_that_tensorflow_takes(name: str, borders: Borders) -> None:
    x, w = tf.reshape(tf.range(16.0), [1, 4, 4, 1]), tf.reshape(tf.range(1.0, 5.0), [2, 2, 1, 1])

    def run(x: Any, w: Any) -> Any:
        return OPERATORS[name](x, w, borders)

    if borders == BATCH or (name.startswith("MaxPool") and max(borders) > 1):
        for device in (CPU, NPU):
            with tf.device(device), pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
                tf.function(run)(x, w)
    else:
        same(run, x, w)
