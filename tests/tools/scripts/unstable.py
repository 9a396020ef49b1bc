"""A training that amplifies rounding: two runs differ after some steps, whoever computes them."""

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.standard_normal((64, 64)).astype("float32")
y = rng.standard_normal((64, 1)).astype("float32")
w = [tf.Variable(rng.standard_normal((64, 64)).astype("float32") / 5) for _ in range(5)]
u = tf.Variable(rng.standard_normal((64, 1)).astype("float32") / 8)


@tf.function
def step():
    with tf.GradientTape() as tape:
        h = tf.constant(x)
        for v in w:
            h = tf.sin(2.0 * tf.matmul(h, v))
        loss = tf.reduce_mean(tf.square(tf.matmul(h, u) - y))
    for v, g in zip(w, tape.gradient(loss, w)):
        v.assign_sub(2.0 * g)
    return loss


for _ in range(40):
    step()
