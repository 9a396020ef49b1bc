"""Keras' Dropout replaced by the device's operators, in a model trained by fit."""

import npu_device

npu_device.open().as_default()

import npu_ops
import numpy as np
import tensorflow as tf


def call(self, inputs, training=None):
    if not training:
        return inputs
    return npu_ops.dropout(inputs, 1.0 - self.rate)


tf.keras.layers.Dropout.call = call
tf.keras.utils.set_random_seed(1)
x = np.random.default_rng(0).standard_normal((64, 8)).astype("float32")
y = x[:, :1] * 2 - x[:, 1:2]
inputs = tf.keras.Input((8,), batch_size=32)
hidden = npu_device.ops.gelu(tf.keras.layers.Dense(32)(inputs))
hidden = tf.keras.layers.Dropout(0.1)(hidden)
model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
model.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss="mse")
losses = model.fit(x, y, epochs=15, batch_size=32, verbose=0).history["loss"]
assert losses[-1] < 0.5 * losses[0], losses
print("final loss", losses[-1])
