"""Several threads, several functions, changing shapes: the same answers, and memory that stays flat."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.tensorflow.comparing import NPU, equal

SHAPES = (2, 3, 5, 8)
ROUNDS = 150
WEIGHTS = tf.Variable(np.random.RandomState(0).rand(6, 6).astype(np.float32))
COUNT = tf.Variable(0, dtype=tf.int64)


def _plain(x: Any) -> Any:
    return tf.nn.softmax(x @ WEIGHTS)


def _mixed(x: Any) -> Any:
    y = tf.ensure_shape(tf.numpy_function(lambda a: a * 2, [x @ WEIGHTS], tf.float32), x.shape)
    return tf.nn.relu(y @ WEIGHTS)


def _chosen(x: Any) -> Any:
    return tf.reduce_sum(tf.boolean_mask(x @ WEIGHTS, x[:, 0] > 0.3), 0) * 2.0


def _loop(x: Any) -> Any:
    for i in tf.range(3):
        x = tf.tanh(x @ WEIGHTS) + tf.cast(i, tf.float32)
    return x


def _counted(x: Any) -> Any:
    COUNT.assign_add(1)
    return tf.matmul(x, x, transpose_b=True)


FUNCTIONS: tuple[Callable[..., Any], ...] = (_plain, _mixed, _chosen, _loop, _counted)


def _run(made: dict[Any, Any], wanted: dict[Any, Any], seed: int, failures: list[BaseException]) -> None:
    random = np.random.RandomState(seed)
    try:
        with tf.device(NPU):
            for _ in range(ROUNDS):
                function, size = (
                    FUNCTIONS[random.randint(len(FUNCTIONS))],
                    SHAPES[random.randint(len(SHAPES))],
                )
                equal(wanted[function, size], made[function](_input(size)))
    except BaseException as error:
        failures.append(error)


def _input(size: int) -> tf.Tensor:
    return tf.constant(np.random.RandomState(size).rand(size, 6).astype(np.float32))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_threads_and_shapes() -> None:
    made = {f: tf.function(f, reduce_retracing=False) for f in FUNCTIONS}
    with tf.device("/CPU:0"):
        plain = {f: tf.function(f) for f in FUNCTIONS}
        wanted = {(f, n): plain[f](_input(n)).numpy() for f in FUNCTIONS for n in SHAPES}
    COUNT.assign(0)
    failures: list[BaseException] = []
    peaks = []
    for _ in range(3):
        threads = [threading.Thread(target=_run, args=(made, wanted, seed, failures)) for seed in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        peaks.append(_peak())
    assert peaks[2] - peaks[1] < 48 << 10, peaks  # kilobytes
