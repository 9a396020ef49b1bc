"""Attention as TensorFlow and Keras write it runs as one task, its gradient as another, with TensorFlow's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from ge.ir.types import TensorDesc
from ge.ops.nn.attention import is_fused
from ge.plan import Plan
from ge.target import host
from tests.tensorflow.comparing import same
from tf_adapter import cache

BATCH, LENGTH, WIDTH, HEADS = 2, 24, 32, 4
_SAMPLE = TensorDesc((1, 1, LENGTH, 8), "float32")
pytestmark = pytest.mark.skipif(
    not is_fused(_SAMPLE, _SAMPLE, _SAMPLE, None, host(), gradient=True),
    reason="this machine has no task for attention",
)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kinds of attention's tasks in all plans that are made; functions of equal graphs share one."""
    import ge.model.model as module

    cache.clear()

    found: list[str] = []
    make = module.Model.__init__

    def noted(self: Any, plan: Plan, *args: Any, **options: Any) -> None:
        make(self, plan, *args, **options)
        found.extend(t.kind for t in plan.tasks if t.kind.startswith("attention"))

    monkeypatch.setattr(module.Model, "__init__", noted)
    yield found


def _input(seed: int = 0) -> tf.Tensor:
    rng = np.random.default_rng(seed)
    return tf.constant(rng.standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32))


def _masks() -> dict[str, dict[str, Any]]:
    """What the layer is called with: padding hides all keys of the last queries, too."""
    lengths = np.array([LENGTH, LENGTH - 7])
    real = np.arange(LENGTH) < lengths[:, None]
    return {
        "plain": {},
        "keys": {"attention_mask": tf.constant(np.repeat(real[:, None], LENGTH, 1))},
        "padding": {"attention_mask": tf.constant(real[:, :, None] & real[:, None, :])},
        "causal": {"use_causal_mask": True},
    }


def _layer() -> Any:
    tf.keras.utils.set_random_seed(3)
    layer = tf.keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
    layer(_input(), _input())
    return layer


def _gradients(layer: Any, options: dict[str, Any]) -> Any:
    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            found = layer(x, y, **options)
            loss = tf.reduce_sum(tf.sin(found))
        return found, tape.gradient(loss, [x, y, *layer.trainable_variables])

    return step


@pytest.mark.parametrize("mask", ["plain", "keys", "padding", "causal"])
def test_multi_head_attention(mask: str, tasks: list[str]) -> None:
    layer, options = _layer(), _masks()[mask]
    ran = same(lambda x, y: layer(x, y, **options), _input(), _input(1), calls=1)
    assert ran.wholly and tasks == ["attention"]


@pytest.mark.parametrize("mask", ["plain", "keys", "padding", "causal"])
def test_gradients_of_multi_head_attention(mask: str, tasks: list[str]) -> None:
    ran = same(_gradients(_layer(), _masks()[mask]), _input(), _input(1), calls=1, atol=1e-4)
    assert ran.wholly and tasks == ["attention", "attention_grad"]


def test_dropped_weights_stay_as_they_are(tasks: list[str]) -> None:
    layer = tf.keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=0.2)
    layer(_input(), _input())

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(layer(x, x, training=True)))
        return tape.gradient(loss, layer.trainable_variables)

    with tf.device("/NPU:0"):
        found = tf.function(step)(_input())
    assert tasks == [] and all(np.isfinite(g).all() for g in found)


def _by_hand(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """As the first transformers were written: heads apart, an added mask of -10000."""

    def split(x: tf.Tensor) -> tf.Tensor:
        return tf.transpose(tf.reshape(x, (BATCH, LENGTH, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    scores = tf.matmul(split(q), split(k), transpose_b=True) / np.float32(np.sqrt(WIDTH // HEADS))
    scores += (1 - tf.cast(mask, tf.float32))[:, None, None, :] * -10000.0
    mixed = tf.matmul(tf.nn.softmax(scores), split(v))
    return tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), (BATCH, LENGTH, WIDTH))


@pytest.mark.parametrize("empty", [False, True], ids=["padded", "nothing but padding"])
def test_gradients_of_attention_by_hand(empty: bool, tasks: list[str]) -> None:
    mask = np.arange(LENGTH) < np.array([LENGTH, 0 if empty else 9])[:, None]

    def step(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([q, k, v])
            loss = tf.reduce_sum(tf.sin(_by_hand(q, k, v, tf.constant(mask))))
        return loss, tape.gradient(loss, [q, k, v])

    ran = same(step, _input(), _input(1), _input(2), calls=1, atol=1e-3 if empty else 1e-4)
    assert ran.wholly and tasks == ["attention", "attention_grad"]
