"""A worker of a `MultiWorkerMirroredStrategy`, in the cluster that TF_CONFIG names; prints what it computes as JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf

import tf_adapter

ROWS = np.random.default_rng(0).standard_normal((32, 6)).astype(np.float32)
BATCH = 8

strategy = tf.distribute.MultiWorkerMirroredStrategy(
    communication_options=tf.distribute.experimental.CommunicationOptions(timeout_seconds=600)
)


def network() -> Any:
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    return tf.keras.Sequential([layers.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(1)])


def batches() -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    rows = tf.data.Dataset.from_tensor_slices((ROWS, ROWS.sum(1, keepdims=True)))
    return rows.batch(BATCH).with_options(options)


with strategy.scope():
    model = network()
    optimizer = tf.keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)


def replica(x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(x, training=True) - y)) / BATCH
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    return loss


@tf.function
def step(x: Any, y: Any) -> Any:
    return strategy.reduce("sum", strategy.run(replica, args=(x, y)), axis=None)


losses = []
for data in strategy.experimental_distribute_dataset(batches()):
    losses.append(float(step(*data)))
    steps = list(tf_adapter.explain(step, *data).steps)
if tf.__version__ < "2.16":  # Keras 3 has no `fit` over several workers
    with strategy.scope():
        model = network()
        model.compile(tf.keras.optimizers.Adam(0.05), "mse")
    losses += model.fit(batches(), epochs=2, verbose=0).history["loss"]
weight = model.trainable_variables[0]
device = getattr(weight, "value", weight).device if tf.__version__ >= "2.16" else weight.device
print(json.dumps({"losses": losses, "device": device, "steps": steps}))
