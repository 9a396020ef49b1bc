"""Operator retaining: what is made inside the scope stays on the host, nothing else does."""

import json

import tensorflow as tf

from npu_bridge.npu_init import *

tf.set_random_seed(3)
X = tf.random_normal([2])
Y = tf.random_normal([2])
with npu_scope.without_npu_compile_scope():
    pred = tf.add(tf.multiply(X, 1.0), 0.0)
cost = tf.reduce_sum(tf.abs(pred - Y))

config = tf.ConfigProto(allow_soft_placement=True)
custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
custom_op.name = "NpuOptimizer"
custom_op.parameter_map["mix_compile_mode"].b = True
config.graph_options.rewrite_options.remapping = RewriterConfig.OFF
config.graph_options.rewrite_options.memory_optimization = RewriterConfig.OFF

with tf.Session(config=config) as sess:
    value, x, y = sess.run([cost, X, Y])
    from npu_bridge.session import partition_report

    report = partition_report(sess, cost)
    host = sorted(p.type for p in report.operations if p.side == "host")
    expected = float(abs(x - y).sum())
    print(json.dumps({"cost": float(value), "expected": expected, "host": host, "parts": report.parts}))
