"""tf.contrib in a version-1 script: layers by slim, cells, hyperparameters, and what has no equivalent."""

import json

import numpy as np
import tensorflow as tf
import tensorflow.contrib.slim as slim
from tensorflow.contrib import layers as contrib_layers
from tensorflow.contrib.rnn import BasicLSTMCell

from npu_bridge.npu_init import *

tf.set_random_seed(1)
hparams = tf.contrib.training.HParams(width=12, rate=0.01)
hparams.parse("width=16")
x = tf.placeholder(tf.float32, [None, 10, 8])
with slim.arg_scope([slim.fully_connected], weights_regularizer=slim.l2_regularizer(1e-4)):
    outputs, _ = tf.nn.dynamic_rnn(BasicLSTMCell(hparams.width), x, dtype=tf.float32)
    net = slim.fully_connected(outputs[:, -1], 8, activation_fn=tf.nn.relu)
    net = contrib_layers.batch_norm(net, is_training=True)
    logits = contrib_layers.fully_connected(
        net, 3, activation_fn=None, weights_initializer=tf.contrib.layers.xavier_initializer(seed=1)
    )
loss = tf.reduce_mean(tf.square(logits)) + tf.add_n(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES))
train = tf.contrib.opt.AdamWOptimizer(1e-4, learning_rate=hparams.rate).minimize(loss)
with tf.Session(config=npu_config_proto()) as sess:
    sess.run(tf.global_variables_initializer())
    data = np.random.default_rng(0).normal(size=(4, 10, 8)).astype("f")
    losses = [float(sess.run([train, loss], {x: data})[1]) for _ in range(10)]
try:
    missing = str(tf.contrib.layers.no_such_layer)
except AttributeError as error:
    missing = str(error)
print(json.dumps({"losses": losses, "missing": missing, "width": hparams.width}))
