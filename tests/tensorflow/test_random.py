"""Random numbers are TensorFlow's bit for bit, in every call of a function and in every type."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter
from tests.tensorflow.comparing import CPU, NPU

FLOATS = ["float32", "float64", "float16", "bfloat16"]


def drawn(make: Callable[[], Callable[[], Any]], device: str, calls: int = 3) -> list[bytes]:
    """The bits that calls of a function draw on a device."""
    with tf.device(device):
        tf.random.set_seed(7)
        function = make()
        return [t.numpy().tobytes() for _ in range(calls) for t in tf.nest.flatten(function())]


def assert_same_bits(draw: Callable[[], Any]) -> None:
    """Check what a function draws, and what it draws operator by operator."""
    made: list[Callable[[], Any]] = [lambda: tf.function(draw, autograph=False), lambda: draw]
    for make in made:
        assert drawn(make, NPU) == drawn(make, CPU)


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_numbers_have_the_same_bits(dtype: str) -> None:
    for size in (1, 7, 2001):
        assert_same_bits(
            lambda size=size: [  # type: ignore[misc]
                tf.random.normal([size], 1.0, 2.0, dtype),
                tf.random.truncated_normal([size], dtype=dtype),
                tf.random.uniform([size], -1, 3, dtype),
                tf.random.stateless_normal([size], [3, 4], dtype=dtype),
                tf.random.stateless_truncated_normal([size], [3, 4], dtype=dtype),
            ]
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_generators_that_were_split_draw_the_same_bits(dtype: str) -> None:
    def make() -> Callable[[], Any]:
        first, second = tf.random.Generator.from_seed(5).split(2)
        return tf.function(
            lambda: [first.normal([9], dtype=dtype), second.truncated_normal([6], dtype=dtype)],
            autograph=False,
        )

    assert drawn(make, NPU) == drawn(make, CPU)


def test_numbers_are_drawn_until_one_is_accepted() -> None:
    """Rejection sampling with stateless seeds, as libraries of distributions do it."""

    def accepted() -> Any:
        def step(seed: Any, value: Any, done: Any) -> tuple[Any, Any, Any]:
            seed = tf.random.experimental.stateless_fold_in(seed, 1)
            normal = tf.random.stateless_normal([64], seed)
            inside = tf.abs(normal) < 0.5
            return seed, tf.where(done, value, normal), done | inside

        start = (tf.constant([1, 2]), tf.zeros([64]), tf.zeros([64], tf.bool))
        return tf.while_loop(lambda seed, value, done: ~tf.reduce_all(done), step, start)[1]

    assert_same_bits(accepted)


def test_uniform_words_have_the_same_bits() -> None:
    assert_same_bits(
        lambda: [
            tf.random.stateless_uniform([33], [3, 4], None, None, tf.uint64),
            tf.random.uniform([33], -5, 1000, tf.int64),
            tf.random.stateless_gamma([50, 2], [3, 4], np.array([0.3, 30], np.float32)),
            tf.random.stateless_poisson([50, 2], [3, 4], np.array([0.3, 30], np.float32)),
            tf.random.categorical(tf.math.log([[0.2, 0.5, 0.3]]), 20),
            tf.random.shuffle(tf.range(50)),
        ]
    )


def test_of_several_implementations_that_for_the_cpu_draws() -> None:
    """Libraries draw by rejection on other devices and by TensorFlow's kernels on the CPU."""

    def make() -> Callable[[], Any]:
        api, given = f"draw_{uuid.uuid4()}", tf.constant([0.3, 3.0])

        def implementation(draw: Callable[[Any], Any], **device: str) -> Any:
            return tf.function(
                draw, experimental_attributes={"api_implements": api, **device}, autograph=False
            )

        elsewhere = implementation(lambda alpha: tf.random.stateless_normal([9, 2], [1, 2]) * alpha)
        here = implementation(
            lambda alpha: tf.random.stateless_gamma([9, 2], [1, 2], alpha), api_preferred_device="CPU"
        )

        def drawing() -> Any:
            result = elsewhere(given)
            here.get_concrete_function(given).add_to_graph()
            return result

        return tf.function(drawing, autograph=False)

    assert drawn(make, NPU, 1) == drawn(make, CPU, 1)
    with tf.device(CPU):
        assert (
            drawn(make, NPU, 1)[0] == tf.random.stateless_gamma([9, 2], [1, 2], [0.3, 3.0]).numpy().tobytes()
        )


@pytest.mark.parametrize(("batch", "classes", "samples"), [(1, 4, 1), (3, 5, 7), (100, 10, 1), (2, 300, 9)])
def test_classes_are_drawn_on_the_npu_with_the_same_bits(batch: int, classes: int, samples: int) -> None:
    """Also where logits are infinite; the counter moves on as TensorFlow's does."""
    x = np.random.default_rng(batch).normal(size=(batch, classes)).astype(np.float32)
    logits = np.where((x > 1.2) & (np.arange(classes) > 0), np.float32(-np.inf), x)

    def draw() -> list[Any]:
        return [
            tf.random.categorical(tf.constant(logits) * 2.0, samples, seed=3),
            tf.random.categorical(tf.constant(x), samples, dtype=tf.int32, seed=4),
        ]

    assert_same_bits(draw)
    with tf.device(NPU):
        function = tf.function(draw, autograph=False)
        function()
        assert "Multinomial" not in str(tf_adapter.explain(function))


def test_classes_of_a_batch_that_tensorflow_divides_among_threads_are_the_hosts() -> None:
    logits = tf.zeros([2000, 20])
    with tf.device(NPU):
        function = tf.function(lambda x: tf.random.categorical(x, 3, seed=3) + 1, autograph=False)
        function(logits)
        assert "divides the batch among its threads" in str(tf_adapter.explain(function, logits))
