"""TensorFlow 1: a convnet of tf.layers with tf.losses, trained by Adam with a feed dictionary."""

import numpy as np
import tensorflow as tf

images = tf.placeholder(tf.float32, [None, 12, 12, 1], name="images")
labels = tf.placeholder(tf.int64, [None], name="labels")
weights = tf.get_variable("conv/kernel", [3, 3, 1, 8], initializer=tf.glorot_uniform_initializer(seed=1))
h = tf.nn.relu(tf.nn.conv2d(images, weights, strides=[1, 1, 1, 1], padding="SAME"))
h = tf.nn.max_pool(h, [1, 2, 2, 1], [1, 2, 2, 1], "VALID")
h = tf.reshape(h, [-1, 6 * 6 * 8])
dense = tf.get_variable("dense/kernel", [288, 10], initializer=tf.glorot_uniform_initializer(seed=2))
logits = tf.matmul(h, dense)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
train_op = tf.train.AdamOptimizer(1e-2).minimize(loss)

rng = np.random.default_rng(0)
x = rng.standard_normal((32, 12, 12, 1)).astype("float32")
y = rng.integers(0, 10, 32)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for _ in range(40):
        sess.run([loss, train_op], feed_dict={images: x, labels: y})
