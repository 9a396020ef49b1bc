"""Training of recurrent layers: the loops of both directions and the updates are one model on the NPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter

STEPS = 4


def _train_step(device: str, cell: str) -> tuple[Callable[..., Any], Any, Any]:
    layer = {"lstm": tf.keras.layers.LSTM, "gru": tf.keras.layers.GRU}[cell]
    with tf.device(device):
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential(
            [tf.keras.Input((7, 5)), layer(8, return_sequences=True), layer(8), tf.keras.layers.Dense(3)]
        )
        optimizer = tf.keras.optimizers.AdamW(1e-2)
        optimizer.build(model.trainable_variables)
        random = np.random.default_rng(2)
        x = tf.constant(random.standard_normal((4, 7, 5)).astype(np.float32))
        y = tf.constant(random.integers(0, 3, 4))

    @tf.function
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    return train, x, y


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_step_is_one_model_and_the_losses_are_tensorflows(cell: str) -> None:
    losses = {}
    for device in ("/CPU:0", "/NPU:0"):
        train, x, y = _train_step(device, cell)
        with tf.device(device):
            losses[device] = [float(train(x, y)) for _ in range(STEPS)]
    np.testing.assert_allclose(losses["/NPU:0"], losses["/CPU:0"], rtol=1e-4)
    assert losses["/NPU:0"][-1] < losses["/NPU:0"][0]
    with tf.device("/NPU:0"):
        told = tf_adapter.explain(train, x, y)
    assert told.node_share == 1.0 and told.steps == ("NPU",)
