"""Iterators of tf.data in sessions: one-shot, feedable, reinitialisable, and trained from; and where they end."""

import json

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import *
from npu_bridge.session import partition_report

data = np.arange(48, dtype="f").reshape(12, 4) / 24


def config(offload=True):
    made = npu_config_proto()
    made.graph_options.rewrite_options.custom_optimizers[0].parameter_map["use_off_line"].b = offload
    return made


def until_the_end(sess, fetches):
    found = []
    try:
        while True:
            found.append(sess.run(fetches))
    except tf.errors.OutOfRangeError:
        return [float(v) for v in found]


def one_shot():
    """Elements in their order and none lost, whatever is fetched; each get_next of a run is one element."""
    with tf.Graph().as_default():
        iterator = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(data).batch(5))
        batch = iterator.get_next()
        total = tf.reduce_sum(tf.square(batch))
        with tf.Session(config=config()) as sess:
            first = float(sess.run(total))
            fetched, same = sess.run([batch, total])
            pair = [float(same), float(np.sum(np.square(fetched)))]
            return {"first": first, "pair": pair, "rest": until_the_end(sess, total)}


def two_of_them():
    """Two iterators, one with a function and names, in one part."""
    with tf.Graph().as_default():
        plain = tf.data.Dataset.from_tensor_slices(data).repeat(2).batch(4)
        named = tf.data.Dataset.range(6).map(
            lambda i: {"scale": tf.cast(i, tf.float32), "text": tf.as_string(i)}
        )
        x = tf.data.make_one_shot_iterator(plain).get_next()
        y = tf.data.make_one_shot_iterator(named).get_next()
        total = tf.reduce_sum(x * y["scale"])
        with tf.Session(config=config()) as sess:
            value, text = sess.run([total, y["text"]])
            return {"first": [float(value), text.decode()], "rest": until_the_end(sess, total)}


def feedable():
    """One graph over two iterators, chosen by a fed handle; a third is begun again on other data."""
    with tf.Graph().as_default():
        handle = tf.placeholder(tf.string, [])
        one = tf.data.make_one_shot_iterator(tf.data.Dataset.from_tensor_slices(data[:2]).repeat())
        other = tf.data.make_initializable_iterator(tf.data.Dataset.from_tensor_slices(data[2:4]).repeat())
        types, shapes = tf.data.get_output_types(one), tf.data.get_output_shapes(one)
        chosen = tf.reduce_sum(tf.data.Iterator.from_string_handle(handle, types, shapes).get_next())
        again = tf.data.Iterator.from_structure(types, shapes)
        starts = [again.make_initializer(tf.data.Dataset.from_tensor_slices(data[k:])) for k in (10, 11)]
        value = tf.reduce_sum(again.get_next())
        with tf.Session(config=config()) as sess:
            sess.run(other.initializer)
            handles = sess.run([one.string_handle(), other.string_handle()])
            found = [float(sess.run(chosen, {handle: handles[k]})) for k in (0, 1, 0, 1, 0)]
            ends = []
            for start in starts:
                sess.run(start)
                ends.append(until_the_end(sess, value))
            return {"chosen": found, "ends": ends}


def trained(offload):
    """Training from a one-shot iterator whose last batch is smaller."""
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.from_tensor_slices((data, data.sum(1) > 4)).repeat(3).batch(5)
        x, y = tf.data.make_one_shot_iterator(dataset).get_next()
        w = tf.get_variable("w", [4, 2], initializer=tf.random_normal_initializer(seed=1))
        loss = tf.losses.sparse_softmax_cross_entropy(tf.cast(y, tf.int32), tf.matmul(x, w))
        update = tf.train.AdamOptimizer(0.1).minimize(loss)
        with tf.control_dependencies([update]):
            fetched = tf.identity(loss)
        with tf.Session(config=config(offload)) as sess:
            sess.run(tf.global_variables_initializer())
            losses = until_the_end(sess, fetched)
            report = partition_report(sess, fetched)
            update = next(p.side for p in report.operations if p.type == "ApplyAdam")
            return {"losses": losses, "update": update}


print(
    json.dumps(
        {
            "one_shot": one_shot(),
            "two": two_of_them(),
            "feedable": feedable(),
            "trained": [trained(True), trained(False)],
        }
    )
)
