"""Keras over all NPUs there are, by a MirroredStrategy."""

import numpy as np
import tensorflow as tf

import tf_adapter  # noqa: F401

devices = [d.name for d in tf.config.list_logical_devices("NPU")]
strategy = tf.distribute.MirroredStrategy(devices) if len(devices) > 1 else tf.distribute.get_strategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [tf.keras.Input((32,)), tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(4)]
    )
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
rng = np.random.default_rng(0)
x, y = rng.standard_normal((512, 32)).astype("float32"), rng.integers(0, 4, 512)
model.fit(x, y, batch_size=32, epochs=1, shuffle=False, verbose=0)
