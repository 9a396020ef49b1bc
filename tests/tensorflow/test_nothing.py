"""Losses and reductions of no classes, no batch or no elements are TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tests.tensorflow.comparing import CPU, NPU, equal


def gradient(loss: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(loss(x))
        return tape.gradient(total, x)

    return run


def entropy(x: Any) -> Any:
    return tf.nn.softmax_cross_entropy_with_logits(tf.ones_like(x), x)


def sparse_entropy(x: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.zeros(x.shape[:-1], tf.int32), x)


CASES: dict[str, Callable[[Any], Any]] = {
    "entropy": entropy,
    "entropy's gradient": gradient(entropy),
    "sparse entropy": sparse_entropy,
    "sparse entropy's gradient": gradient(sparse_entropy),
    "softmax": tf.nn.softmax,
    "log_softmax": tf.nn.log_softmax,
    "sum": tf.reduce_sum,
    "product of rows": lambda x: tf.reduce_prod(x, -1),
    "mean": tf.reduce_mean,
    "maxima of columns": lambda x: tf.reduce_max(x, 0),
    "logsumexp of rows": lambda x: tf.reduce_logsumexp(x, -1),
    "argmax of rows": lambda x: tf.argmax(x, -1),
    "rows of any number": lambda x: tf.reshape(x, [-1, x.shape[-1]]),
}


def outcome(function: Callable[[Any], Any], device: str, shape: tuple[int, ...]) -> Any:
    """The result, or that TensorFlow refuses it."""
    with tf.device(device):
        try:
            return tf.function(function, autograph=False)(tf.ones(shape))
        except tf.errors.InvalidArgumentError:
            return "refused"


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 0, 0), (0, 2, 3)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_functions_of_nothing(name: str, shape: tuple[int, ...]) -> None:
    wanted, given = (outcome(CASES[name], device, shape) for device in (CPU, NPU))
    if isinstance(wanted, str) or isinstance(given, str):
        assert wanted is given
    else:
        equal(wanted, given)
