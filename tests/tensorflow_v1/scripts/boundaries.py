"""Loops whose inputs the NPU does not take: tensors of a size known only at run time, and complex ones."""

import json
import warnings

import numpy as np
import tensorflow as tf

from ge.faults import InternalErrorWarning
from npu_bridge.npu_init import npu_config_proto


def unsized():
    x = tf.placeholder(tf.int64, [4])
    start, _ = tf.unique(x)
    rows = tf.placeholder(tf.float32, [3, 2])
    return tf.scan(lambda a, _: a + 1, rows, initializer=start), {x: [5, 5, 7, 5], rows: np.ones((3, 2))}


def complex_states():
    x = tf.placeholder(tf.complex64, [2])
    states = (tf.constant(0), tf.math.conj(x))
    return tf.abs(tf.while_loop(lambda i, _: i < 0, lambda i, _: (i + 1, x), states)[1]), {x: [3 + 4j, 1]}


def found(build, offload):
    with tf.Graph().as_default():
        y, feed = build()
        config = npu_config_proto(tf.ConfigProto())
        config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["use_off_line"].b = offload
        with tf.Session(config=config) as sess:
            return sess.run(y, feed).tolist()


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("error", InternalErrorWarning)
        cases = (unsized, complex_states)
        print(json.dumps({f.__name__: [found(f, True), found(f, False)] for f in cases}))
