"""Sizes that only a run shows: batches of an iterator, a tensor made by the host; types kept; partial runs."""

import json

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import *
from npu_bridge.session import partition_report

rng = np.random.default_rng(0)
data = rng.normal(size=(20, 6)).astype("f")


def session(offload, **parameters):
    config = npu_config_proto()
    known = config.graph_options.rewrite_options.custom_optimizers[0].parameter_map
    known["use_off_line"].b = offload
    for name, value in parameters.items():
        known[name].s = value.encode()
    return tf.Session(config=config)


def trained(source, resource, offload):
    """Losses of a small network whose batches have 8, 8 and 4 rows, and where its updates are."""
    with tf.Graph().as_default(), session(offload) as sess:
        x = tf.placeholder(tf.float32, [None, 6])
        batch, iterator = x, None
        if source == "iterator":
            iterator = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(data).batch(8))
            batch = iterator.get_next()
        if source == "retained":
            with npu_scope.without_npu_compile_scope():
                batch = tf.multiply(x, 1.0)
        with tf.variable_scope("net", use_resource=resource):
            w = tf.get_variable("w", [6, 3], initializer=tf.ones_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(tf.tanh(batch), w) - 1.0))
        train = tf.train.AdamOptimizer(0.05).minimize(loss)
        sess.run(tf.global_variables_initializer())
        losses = []
        for _ in range(2):
            if iterator is not None:
                sess.run(iterator.initializer)
            for start in (0, 8, 16):
                feed = {} if iterator is not None else {x: data[start : start + 8]}
                losses.append(float(sess.run([loss, train], feed)[0]))
        report = partition_report(sess, [loss, train], [x] if iterator is None else [])
        sides = {p.type: p.side for p in report.operations}
    return {"losses": losses, "update": sides.get("ResourceApplyAdam") or sides.get("ApplyAdam")}


def kept(scope):
    """A product in 16 bits is coarse, unless its types are kept."""
    with tf.Graph().as_default(), session(True, precision_mode="allow_mix_precision_bf16") as sess:
        x = tf.placeholder(tf.float32, [64, 64])
        with scope() if scope else tf.name_scope("plain"):
            y = tf.matmul(x, x)
        value = rng.normal(size=(64, 64)).astype("f")
        exact = value.astype(np.float64) @ value
        return float(np.abs(sess.run(y, {x: value}) - exact).max() / np.abs(exact).max())


def partial():
    """A run in two pieces, and runs of one graph with changing fetches."""
    with tf.Graph().as_default(), session(True) as sess:
        a, b = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.float32, [2])
        first = tf.exp(a)
        second = first * b
        handle = sess.partial_run_setup([first, second], [a, b])
        one = sess.partial_run(handle, first, {a: [0.0, 1.0]})
        two = sess.partial_run(handle, second, {b: one})
        three = sess.run([second, first], {a: [0.0, 1.0], b: [2.0, 2.0]})
        four = sess.run(second, {first: [3.0, 3.0], b: [2.0, 2.0]})
        return [v.tolist() for v in (one, two, *three, four)]


cases = [(s, r) for s in ("iterator", "retained") for r in (False, True)]
print(
    json.dumps(
        {
            "trained": [[s, r, trained(s, r, True), trained(s, r, False)] for s, r in cases],
            "coarse": kept(None),
            "kept": kept(npu_scope.keep_dtype_scope),
            "partial": partial(),
        }
    )
)
