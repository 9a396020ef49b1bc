"""Recurrent layers over whole sequences against NumPy."""

import json

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import *


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


data = np.random.default_rng(0).normal(size=(5, 3, 4)).astype("f")
x = tf.constant(data)
lstm = DynamicRNN(hidden_size=6, dtype=tf.float32, forget_bias=1.0)
gru = DynamicGRUV2(hidden_size=6, dtype=tf.float32)
y, u = lstm(x)[0], gru(x)[0]
loss_gradients = tf.gradients(tf.reduce_sum(tf.square(y)), tf.trainable_variables()[:2])
with tf.Session(config=npu_config_proto()) as sess:
    sess.run(tf.global_variables_initializer())
    got, gated, weights, gradients = sess.run([y, u, tf.trainable_variables(), loss_gradients])
w, b, wx, wh, bx, bh = weights
h = c = g = np.zeros((3, 6), "f")
wanted, wanted_gated = [], []
for now in data:
    i, j, f, o = np.split(np.concatenate([now, h], 1) @ w + b, 4, 1)
    c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
    h = sigmoid(o) * np.tanh(c)
    wanted.append(h)
    a, k = np.split(now @ wx + bx, 3, 1), np.split(g @ wh + bh, 3, 1)
    update, reset = sigmoid(a[0] + k[0]), sigmoid(a[1] + k[1])
    g = (1 - update) * np.tanh(a[2] + reset * k[2]) + update * g
    wanted_gated.append(g)
errors = [float(np.abs(got - wanted).max()), float(np.abs(gated - wanted_gated).max())]
print(json.dumps({"errors": errors, "gradients": [list(v.shape) for v in gradients]}))
