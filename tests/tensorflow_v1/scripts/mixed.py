"""Mixed computing: Python, strings, a hash table and a summary in the middle of the graph."""

import json

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import *

words = tf.placeholder(tf.string, [None])
x = tf.placeholder(tf.float32, [None, 8])
table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b", "c"], [1, 2, 3]), 0)
scale = tf.cast(table.lookup(tf.strings.substr(words, 0, 1)), tf.float32)
w = tf.get_variable("w", [8, 8], initializer=tf.random_normal_initializer(seed=1))
hidden = tf.nn.relu(tf.matmul(x, w)) * tf.expand_dims(scale, 1)
checked = tf.py_func(lambda h: np.minimum(h, 2.0), [hidden], tf.float32)
checked.set_shape([None, 8])
summary = tf.summary.scalar("mean", tf.reduce_mean(checked))
loss = tf.reduce_sum(tf.square(tf.tanh(checked) - 0.5))

config = npu_config_proto(tf.ConfigProto(allow_soft_placement=True))
config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["mix_compile_mode"].b = True
feed = {words: ["apple", "boat", "cat", "x"], x: np.random.default_rng(0).normal(size=(4, 8)).astype("f")}
with tf.Session(config=config) as sess:
    sess.run([tf.global_variables_initializer(), tf.tables_initializer()])
    value, written, weights = sess.run([loss, summary, w], feed)
    from npu_bridge.session import partition_report

    report = partition_report(sess, [loss, summary], list(feed))
h = np.maximum(feed[x] @ weights, 0) * np.array([1, 2, 3, 0], "f")[:, None]
h = np.minimum(h, 2.0)
expected = float(np.sum((np.tanh(h) - 0.5) ** 2))
proto = tf.Summary.FromString(written)
print(
    json.dumps(
        {
            "loss": float(value),
            "expected": expected,
            "summary": proto.value[0].simple_value,
            "mean": float(h.mean()),
            "parts": report.parts,
            "report": json.loads(report.json()),
            "text": report.text(),
        }
    )
)
