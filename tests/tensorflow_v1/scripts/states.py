"""What reads of variables give before, between and after updates; effects in branches; rows of large tables."""

import json

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import *
from npu_bridge.session import partition_report


def session(offload):
    config = npu_config_proto()
    config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["use_off_line"].b = offload
    return tf.Session(config=config)


def values(resource, offload):
    """The values that runs give, and the number of parts of some."""
    found, parts = {}, {}
    with tf.Graph().as_default(), session(offload) as sess:
        v = tf.get_variable("v", initializer=np.arange(4, dtype="f"), use_resource=resource)
        count = tf.get_variable("count", initializer=np.int64(0), trainable=False, use_resource=resource)
        x = tf.placeholder(tf.float32, [4])
        flag = tf.placeholder(tf.bool, [])
        doubled = tf.assign(v, v * 2.0)
        with tf.control_dependencies([doubled]):
            between = tf.identity(v.read_value() + x)
        with tf.control_dependencies([between]):
            added = tf.assign_add(v, tf.tanh(x))
        with tf.control_dependencies([added]):
            after = v.read_value() * 1.0
        finite = tf.reduce_all(tf.is_finite(x))
        step = tf.cond(
            finite,
            lambda: tf.group(tf.assign_sub(v, x * 0.5), tf.assign_add(count, 1)),
            lambda: tf.group(tf.no_op()),
        )
        chosen = tf.cond(flag, lambda: v * x, lambda: v - x)
        sess.run(tf.global_variables_initializer())
        data = np.array([0.5, -1.0, 2.0, 3.0], "f")
        snapshot = sess.run(v)
        found["order"] = [a.tolist() for a in sess.run([between, after], {x: data})]
        found["snapshot"] = snapshot.tolist()
        found["fetched"] = sess.run(v).tolist()
        sess.run(step, {x: data})
        sess.run(step, {x: data * np.inf})
        found["skipped"], found["steps"] = sess.run(v).tolist(), int(sess.run(count))
        found["chosen"] = [sess.run(chosen, {x: data, flag: f}).tolist() for f in (True, False)]
        both = sess.run([added, tf.assign_add(count, 5)], {x: data})
        found["both"], found["five"] = both[0].tolist(), int(both[1])
        if offload:
            parts["branch"] = partition_report(sess, step, [x]).parts
    return {"values": found, "parts": parts}


def large(resource):
    """One row of a large table is changed."""
    with tf.Graph().as_default(), session(True) as sess:
        table = tf.get_variable("t", [40000, 16], initializer=tf.ones_initializer(), use_resource=resource)
        ids = tf.placeholder(tf.int32, [None])
        loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, ids)))
        train = tf.train.GradientDescentOptimizer(0.25).minimize(loss)
        sess.run(tf.global_variables_initializer())
        sess.run(train, {ids: [3, 7, 3]})
        rows = sess.run(tf.gather(table, [3, 7, 8])).tolist()
        report = partition_report(sess, train, [ids])
        types = {side: [p.type for p in report.operations if p.side == side] for side in ("host", "npu")}
    return {**types, "row": [r[0] for r in rows], "expected": [0.0, 0.5, 1.0]}


kinds = {"reference": False, "resource": True}
results = {name: [values(kind, True), values(kind, False)] for name, kind in kinds.items()}
print(json.dumps({**results, "large": large(True), "large_reference": large(False)}))
