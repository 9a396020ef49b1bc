"""TensorFlow 1: a loop of tf.while_loop over time, and gradients that are clipped by hand."""

import numpy as np
import tensorflow as tf

steps, width = 6, 8
sequence = tf.placeholder(tf.float32, [16, steps, width])
target = tf.placeholder(tf.float32, [16, width])
w = tf.get_variable("w", [width, width], initializer=tf.random_normal_initializer(stddev=0.2, seed=5))
u = tf.get_variable("u", [width, width], initializer=tf.random_normal_initializer(stddev=0.2, seed=6))


def body(i, state):
    return i + 1, tf.tanh(tf.matmul(sequence[:, i], w) + tf.matmul(state, u))


_, state = tf.while_loop(lambda i, _: i < steps, body, [tf.constant(0), tf.zeros([16, width])])
loss = tf.reduce_mean(tf.square(state - target))
optimizer = tf.train.GradientDescentOptimizer(0.5)
gradients, variables = zip(*optimizer.compute_gradients(loss))
clipped, norm = tf.clip_by_global_norm(gradients, 1.0)
train_op = optimizer.apply_gradients(zip(clipped, variables))

rng = np.random.default_rng(2)
feeds = {
    sequence: rng.standard_normal((16, steps, width)).astype("float32"),
    target: rng.standard_normal((16, width)).astype("float32"),
}
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for _ in range(40):
        sess.run([loss, train_op, norm], feeds)
