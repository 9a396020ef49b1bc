"""TensorFlow 1: a monitored session with a global step, hooks and an initialisable iterator."""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(1)
x = rng.standard_normal((64, 6)).astype("float32")
y = x[:, :1] * 2 - 1
data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(16)
features, targets = tf.data.make_one_shot_iterator(data).get_next()
features = tf.reshape(features, [16, 6])
hidden = tf.get_variable("hidden", [6, 12], initializer=tf.random_normal_initializer(stddev=0.3, seed=3))
output = tf.get_variable("output", [12, 1], initializer=tf.random_normal_initializer(stddev=0.3, seed=4))
prediction = tf.matmul(tf.tanh(tf.matmul(features, hidden)), output)
loss = tf.reduce_mean(tf.squared_difference(prediction, tf.reshape(targets, [16, 1])))
step = tf.train.get_or_create_global_step()
train_op = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss, global_step=step)
with tf.train.MonitoredTrainingSession(hooks=[tf.train.StopAtStepHook(last_step=30)]) as sess:
    while not sess.should_stop():
        sess.run([loss, train_op])
