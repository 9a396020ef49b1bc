"""A training loop with planted faults; comments name them."""

import time

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential(
    [tf.keras.Input((8,)), tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(1)]
)
optimizer = tf.keras.optimizers.SGD(0.05)
optimizer.build(model.trainable_variables)


def slowly(x):
    time.sleep(0.01)
    return x


def batches():
    rng = np.random.default_rng(0)
    while True:
        x = rng.standard_normal((8,)).astype("float32")
        yield x, x[:1]


data = tf.data.Dataset.from_generator(
    batches, output_signature=(tf.TensorSpec((8,), tf.float32), tf.TensorSpec((1,), tf.float32))
)
data = data.map(lambda x, y: (tf.py_function(slowly, [x], tf.float32), y))  # slow input
data = data.map(lambda x, y: (tf.ensure_shape(x, [8]), y))
data = data.batch(8)


def rounded(x):
    return np.round(x, 3)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        h = model(x, training=True)
        spectrum = tf.signal.fft(tf.cast(h[:, 0], tf.complex64))  # unsupported operator
        loss = tf.reduce_mean(tf.square(h - y)) + 0.0 * tf.reduce_mean(tf.abs(spectrum))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    shown = tf.numpy_function(rounded, [loss], tf.float32)  # host round trip
    return loss, shown


history = []
for x, y in data.take(100):
    loss, shown = train_step(x, y)
    if loss.numpy() > 1e9:  # read in every step
        break
    history.append(tf.random.normal([200_000]))  # leak
