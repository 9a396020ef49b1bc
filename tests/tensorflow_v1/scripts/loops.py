"""Gradients of loops in version-1 style, on the NPU and without it; prints losses and what was on the NPU."""

import json

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import npu_config_proto
from npu_bridge.session import partition_report


def lengths():
    """Sequences of different lengths: the number of steps is known when the loop has run."""
    x = tf.placeholder(tf.float32, [3, 7, 4])
    length = tf.placeholder(tf.int32, [3])
    w = tf.Variable(tf.random_normal([4, 4], stddev=0.5, seed=1))
    rows = tf.TensorArray(tf.float32, 7).unstack(tf.transpose(x, [1, 0, 2]))
    outputs = tf.TensorArray(tf.float32, 7, element_shape=[3, 4])
    last = tf.minimum(7, tf.maximum(1, tf.reduce_max(length)))

    def body(t, h, out):
        new = tf.tanh(rows.read(t) + tf.matmul(h, w))
        over = tf.tile(tf.reshape(t >= length, [3, 1]), [1, 4])
        return t + 1, tf.where(over, h, new), out.write(t, tf.where(over, tf.zeros_like(new), new))

    _, state, _ = tf.while_loop(lambda t, *_: t < last, body, (0, tf.zeros([3, 4]), outputs))
    loss = tf.reduce_mean(tf.square(state))

    def feed(rng):
        return {x: rng.normal(size=(3, 7, 4)).astype("f"), length: rng.integers(1, 8, 3).astype("i")}

    return loss, feed


def branches():
    """A branch in the loop: values are kept on the stack on one side only, which the host does."""
    x = tf.placeholder(tf.float32, [3, 4])
    w = tf.Variable(tf.random_normal([4, 4], stddev=0.5, seed=1))

    def body(t, h):
        return t + 1, tf.cond(tf.reduce_sum(h) > 0, lambda: tf.sin(tf.matmul(h, w)), lambda: tf.cos(h))

    loss = tf.reduce_mean(tf.square(tf.while_loop(lambda t, _: t < 4, body, (0, x))[1]))
    return loss, lambda rng: {x: rng.normal(size=(3, 4)).astype("f")}


def inside():
    """A loop in a branch: forward and backward pass wait for each other through the operations between them."""
    x = tf.placeholder(tf.float32, [5])
    w = tf.Variable(tf.random_normal([5], stddev=0.5, seed=1))

    def looped():
        rows = tf.TensorArray(tf.float32, tf.shape(w)[0])
        body = lambda t, out: (t + 1, out.write(t, tf.tanh(w[t] * x[t])))  # noqa: E731
        return tf.while_loop(lambda t, _: t < tf.shape(w)[0], body, (0, rows))[1].stack()

    y = tf.cond(tf.reduce_max(x) > 0.5, looped, lambda: w * x)
    return tf.reduce_mean(tf.square(y)), lambda rng: {x: rng.normal(size=5).astype("f")}


def unequal():
    """An assertion on shapes that holds for some batches only."""
    x = tf.placeholder(tf.float32, [None, 4])
    w = tf.Variable(tf.random_normal([4, 4], stddev=0.5, seed=1))
    h = tf.while_loop(lambda t, _: t < 4, lambda t, h: (t + 1, tf.tanh(tf.matmul(h, w))), (0, x))[1]
    with tf.control_dependencies([tf.assert_equal(tf.shape(h)[0], 5)]):
        loss = tf.reduce_mean(tf.square(h))
    return loss, lambda rng: {x: rng.normal(size=(5, 4)).astype("f")}


def trained(build, offload):
    with tf.Graph().as_default():
        tf.set_random_seed(3)
        loss, feed = build()
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        config = npu_config_proto(tf.ConfigProto())
        config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["use_off_line"].b = offload
        with tf.Session(config=config) as sess:
            sess.run(tf.global_variables_initializer())
            rng = np.random.default_rng(5)
            losses = [float(sess.run([train, loss], feed(rng))[1]) for _ in range(8)]
            report = partition_report(sess, [train, loss], list(feed(rng)))
            failed = ""
            if build is unequal:
                (x,) = feed(rng)
                try:
                    sess.run([train, loss], {x: np.ones((6, 4), "f")})
                except tf.errors.InvalidArgumentError as error:
                    failed = type(error).__name__
    kinds = sorted({p.type for p in report.operations if p.side == "npu"})
    return {"losses": losses, "parts": report.parts, "kinds": kinds, "failed": failed}


if __name__ == "__main__":
    print(
        json.dumps(
            {f.__name__: [trained(f, True), trained(f, False)] for f in (lengths, branches, inside, unequal)}
        )
    )
