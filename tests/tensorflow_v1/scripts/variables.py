"""Optimizers on variables by reference and by handle, dense and by rows: losses on the NPU and in plain TensorFlow."""

import json
import sys

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import *
from npu_bridge.session import partition_report

STEPS = 4
train = tf.train
OPTIMIZERS = {
    "descent": lambda: train.GradientDescentOptimizer(0.1),
    "momentum": lambda: train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adam": lambda: train.AdamOptimizer(0.05),
    "rmsprop": lambda: train.RMSPropOptimizer(0.05, momentum=0.5),
    "centered": lambda: train.RMSPropOptimizer(0.05, centered=True),
    "adagrad": lambda: train.AdagradOptimizer(0.1),
    "adadelta": lambda: train.AdadeltaOptimizer(1.0),
    "ftrl": lambda: train.FtrlOptimizer(0.1),
    "proximal": lambda: train.ProximalAdagradOptimizer(0.1),
}


def network(name, rows):
    ids = tf.placeholder(tf.int32, [None, 3])
    table = tf.get_variable("table", [20, 4], initializer=tf.random_normal_initializer(seed=1))
    w = tf.get_variable("w", [12, 2], initializer=tf.random_normal_initializer(seed=2))
    b = tf.get_variable("b", [2], initializer=tf.zeros_initializer())
    net = tf.nn.embedding_lookup(table, ids) if rows else tf.tile(tf.one_hot(ids, 4), [1, 1, 1])
    loss = tf.reduce_mean(tf.square(tf.matmul(tf.reshape(net, [-1, 12]), w) + b - 1.0))
    step = tf.train.get_or_create_global_step()
    return ids, loss, OPTIMIZERS[name]().minimize(loss, global_step=step), step


def trained(name, rows, resource, offload):
    with tf.Graph().as_default():
        with tf.variable_scope("net", use_resource=resource):
            ids, loss, update, step = network(name, rows)
        config = npu_config_proto()
        config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["use_off_line"].b = offload
        with tf.Session(config=config) as sess:
            sess.run(tf.global_variables_initializer())
            rng = np.random.default_rng(3)
            losses = [
                float(sess.run([loss, update], {ids: rng.integers(0, 9, (8, 3))})[0]) for _ in range(STEPS)
            ]
            report = partition_report(sess, [loss, update], [ids]) if offload else None
            values = [v.tolist() for v in sess.run(tf.trainable_variables())]
            count = int(sess.run(step))
        found = {"losses": losses, "step": count, "values": values}
        if report is not None:
            found["parts"] = report.parts
            found["host"] = sorted({f"{p.type}: {p.reason}" for p in report.operations if p.side == "host"})
        return found


if __name__ == "__main__":
    names = sys.argv[1:] or list(OPTIMIZERS)
    cases = [(name, rows, resource) for name in names for rows in (False, True) for resource in (False, True)]
    print(json.dumps([[*case, trained(*case, True), trained(*case, False)] for case in cases]))
