"""What version-1 sessions do besides plain runs: iterators, savers, queues, callables, changing fetches, loops."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import *

results = {}
data = np.arange(24, dtype="f").reshape(6, 4)
dataset = tf.data.Dataset.from_tensor_slices(data).batch(2)
iterator = tf.data.make_initializable_iterator(dataset)
batch = iterator.get_next()
w = tf.get_variable("w", [4, 3], initializer=tf.ones_initializer(), use_resource=True)
v = tf.get_variable("v", [3], initializer=tf.zeros_initializer())
y = tf.nn.relu(tf.matmul(batch, w) + v)
total = tf.reduce_sum(y)
update = tf.assign_add(v, tf.reduce_mean(y, 0) * 0.125)
step = tf.train.get_or_create_global_step()
advance = tf.assign_add(step, 1)
saver = tf.train.Saver()

queue = tf.FIFOQueue(10, [tf.float32], [[4]])
enqueue = queue.enqueue_many(tf.constant(data) * 2.0)
doubled = tf.reduce_sum(tf.square(queue.dequeue()))

a = tf.placeholder(tf.float32, [None])
flag = tf.placeholder(tf.bool, [])
branch = tf.cond(flag, lambda: tf.exp(a) + 1.0, lambda: tf.square(a) - 1.0)
count, power = tf.while_loop(lambda i, p: i < 5, lambda i, p: (i + 1, p * a), (0, tf.ones_like(a)))

matrix = tf.placeholder(tf.float32, [None, None])
product = tf.matmul(tf.ones([2, 3]), matrix)

with tf.Session(config=npu_config_proto(tf.ConfigProto(allow_soft_placement=True))) as sess:
    sess.run(tf.global_variables_initializer())
    sess.run(iterator.initializer)
    results["totals"] = [float(sess.run(total)) for _ in range(3)]
    try:
        sess.run(total)
        results["end"] = "missing"
    except tf.errors.OutOfRangeError:
        results["end"] = "OutOfRangeError"
    sess.run(iterator.initializer)
    sess.run([update, advance])
    results["v"] = sess.run(v).tolist()
    folder = tempfile.mkdtemp()
    path = saver.save(sess, os.path.join(folder, "model"), global_step=step)
    sess.run(tf.assign(v, [9.0, 9.0, 9.0]))
    results["nine"] = sess.run(v * 2.0).tolist()
    saver.restore(sess, path)
    results["restored"] = sess.run(v).tolist()
    results["step"] = int(sess.run(step))
    sess.run(enqueue)
    results["queue"] = [float(sess.run(doubled)) for _ in range(2)]
    values = np.array([0.5, 2.0], "f")
    results["then"] = sess.run(branch, {a: values, flag: True}).tolist()
    results["else"] = sess.run(branch, {a: values, flag: False}).tolist()
    results["power"] = sess.run([power, count], {a: values})[0].tolist()
    results["longer"] = sess.run(power, {a: np.ones(7, "f")}).tolist()
    call = sess.make_callable(power, [a])
    results["callable"] = call(values).tolist()
    results["fed_middle"] = float(sess.run(total, {y: np.ones((2, 3), "f")}))
    again = util.set_iteration_per_loop(sess, advance, 4)
    sess.run(again)
    results["iterations"] = int(sess.run(step))
    try:
        sess.run(product, {matrix: values[None]})
        results["wrong"] = "missing"
    except tf.errors.InvalidArgumentError:
        results["wrong"] = "InvalidArgumentError"
    results["after"] = float(sess.run(tf.reduce_sum(a), {a: values}))
print(json.dumps(results))
