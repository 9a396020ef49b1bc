"""Networks in version-1 style, trained for some steps on the NPU and without it; prints the losses."""

import json
import sys

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import npu_config_proto
from npu_bridge.session import partition_report

STEPS = 20


def lenet():
    x = tf.placeholder(tf.float32, [None, 28, 28, 1])
    y = tf.placeholder(tf.int64, [None])
    w1 = tf.Variable(tf.truncated_normal([5, 5, 1, 8], stddev=0.1, seed=1))
    b1 = tf.Variable(tf.zeros([8]))
    net = tf.nn.max_pool(
        tf.nn.relu(tf.nn.conv2d(x, w1, [1, 1, 1, 1], "SAME") + b1), [1, 2, 2, 1], [1, 2, 2, 1], "SAME"
    )
    w2 = tf.Variable(tf.truncated_normal([5, 5, 8, 16], stddev=0.1, seed=2))
    b2 = tf.Variable(tf.zeros([16]))
    net = tf.nn.max_pool(
        tf.nn.relu(tf.nn.conv2d(net, w2, [1, 1, 1, 1], "SAME") + b2), [1, 2, 2, 1], [1, 2, 2, 1], "SAME"
    )
    net = tf.reshape(net, [-1, 7 * 7 * 16])
    w3 = tf.get_variable("w3", [7 * 7 * 16, 10], initializer=tf.glorot_uniform_initializer(seed=3))
    logits = tf.matmul(net, w3)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    train = tf.train.AdamOptimizer(1e-3).minimize(loss)

    def feed(rng):
        return {x: rng.normal(size=(16, 28, 28, 1)).astype("f"), y: rng.integers(0, 10, 16)}

    return train, loss, feed


def resnet():
    x = tf.placeholder(tf.float32, [None, 16, 16, 3])
    y = tf.placeholder(tf.int64, [None])

    def conv(net, filters, stride, seed):
        w = tf.Variable(tf.random_normal([3, 3, int(net.shape[-1]), filters], stddev=0.1, seed=seed))
        net = tf.nn.conv2d(net, w, [1, stride, stride, 1], "SAME")
        gamma, beta = tf.Variable(tf.ones([filters])), tf.Variable(tf.zeros([filters]))
        mean, variance = tf.nn.moments(net, [0, 1, 2])
        return tf.nn.batch_normalization(net, mean, variance, beta, gamma, 1e-3)

    net = tf.nn.relu(conv(x, 8, 1, 1))
    for block in range(2):
        inner = tf.nn.relu(conv(net, 8, 1, 10 + block))
        net = tf.nn.relu(net + conv(inner, 8, 1, 20 + block))
    net = tf.reduce_mean(net, [1, 2])
    w = tf.Variable(tf.random_normal([8, 5], stddev=0.1, seed=30))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.matmul(net, w)))
    train = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)

    def feed(rng):
        return {x: rng.normal(size=(8, 16, 16, 3)).astype("f"), y: rng.integers(0, 5, 8)}

    return train, loss, feed


def word2vec():
    inputs = tf.placeholder(tf.int32, [None])
    labels = tf.placeholder(tf.int32, [None])
    embeddings = tf.Variable(tf.random_uniform([50, 16], -1.0, 1.0, seed=1))
    weights = tf.Variable(tf.truncated_normal([50, 16], stddev=0.25, seed=2))
    biases = tf.Variable(tf.zeros([50]))
    looked_up = tf.nn.embedding_lookup(embeddings, inputs)
    logits = tf.matmul(looked_up, weights, transpose_b=True) + biases
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    train = tf.train.GradientDescentOptimizer(0.5).minimize(loss)

    def feed(rng):
        return {inputs: rng.integers(0, 50, 32), labels: rng.integers(0, 50, 32)}

    return train, loss, feed


def lstm():
    x = tf.placeholder(tf.int32, [None, 12])
    y = tf.placeholder(tf.int32, [None, 12])
    table = tf.get_variable("table", [30, 16], initializer=tf.random_uniform_initializer(-0.2, 0.2, seed=1))
    cell = tf.nn.rnn_cell.BasicLSTMCell(24)
    outputs, _ = tf.nn.dynamic_rnn(cell, tf.nn.embedding_lookup(table, x), dtype=tf.float32)
    w = tf.get_variable("w", [24, 30], initializer=tf.random_uniform_initializer(-0.2, 0.2, seed=2))
    logits = tf.reshape(tf.matmul(tf.reshape(outputs, [-1, 24]), w), [-1, 12, 30])
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    optimizer = tf.train.AdamOptimizer(1e-2)
    pairs = optimizer.compute_gradients(loss)
    clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 1.0)
    train = optimizer.apply_gradients(zip(clipped, [v for _, v in pairs]))

    def feed(rng):
        return {x: rng.integers(0, 30, (4, 12)), y: rng.integers(0, 30, (4, 12))}

    return train, loss, feed


def seq2seq():
    x = tf.placeholder(tf.float32, [None, 8])
    target = tf.placeholder(tf.float32, [None, 5, 8])
    w = tf.Variable(tf.random_normal([8, 8], stddev=0.3, seed=1))
    u = tf.Variable(tf.random_normal([8, 8], stddev=0.3, seed=2))

    def body(step, state, outputs):
        state = tf.tanh(tf.matmul(state, w))
        return step + 1, state, outputs.write(step, tf.matmul(state, u))

    outputs = tf.TensorArray(tf.float32, 5)
    _, _, outputs = tf.while_loop(lambda step, *_: step < 5, body, (0, x, outputs))
    loss = tf.reduce_mean(tf.square(tf.transpose(outputs.stack(), [1, 0, 2]) - target))
    train = tf.train.RMSPropOptimizer(1e-2).minimize(loss)

    def feed(rng):
        return {x: rng.normal(size=(6, 8)).astype("f"), target: rng.normal(size=(6, 5, 8)).astype("f")}

    return train, loss, feed


def ctr():
    ids = tf.placeholder(tf.int32, [None, 6])
    dense = tf.placeholder(tf.float32, [None, 4])
    label = tf.placeholder(tf.float32, [None, 1])
    table = tf.get_variable("table", [100, 8], initializer=tf.random_normal_initializer(stddev=0.1, seed=1))
    linear = tf.get_variable("linear", [100, 1], initializer=tf.zeros_initializer())
    vectors = tf.nn.embedding_lookup(table, ids)
    square_of_sum = tf.square(tf.reduce_sum(vectors, 1))
    sum_of_square = tf.reduce_sum(tf.square(vectors), 1)
    fm = 0.5 * tf.reduce_sum(square_of_sum - sum_of_square, 1, keepdims=True)
    net = tf.concat([tf.reshape(vectors, [-1, 48]), dense], 1)
    for index, width in enumerate((32, 1)):
        w = tf.Variable(tf.random_normal([int(net.shape[1]), width], stddev=0.1, seed=5 + index))
        net = tf.matmul(net, w)
        net = tf.nn.relu(net) if width > 1 else net
    logits = net + fm + tf.reduce_sum(tf.nn.embedding_lookup(linear, ids), 1)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits))
    train = tf.train.AdagradOptimizer(0.05).minimize(loss)

    def feed(rng):
        return {
            ids: rng.integers(0, 100, (16, 6)),
            dense: rng.normal(size=(16, 4)).astype("f"),
            label: rng.integers(0, 2, (16, 1)).astype("f"),
        }

    return train, loss, feed


def gan():
    real = tf.placeholder(tf.float32, [None, 8])
    noise = tf.placeholder(tf.float32, [None, 4])

    def dense(net, name, width):
        w = tf.get_variable(
            name, [int(net.shape[1]), width], initializer=tf.glorot_uniform_initializer(seed=len(name))
        )
        return tf.matmul(net, w)

    def generator(net):
        with tf.variable_scope("generator"):
            return dense(tf.nn.relu(dense(net, "g1", 16)), "g22", 8)

    def discriminator(net, reuse):
        with tf.variable_scope("discriminator", reuse=reuse):
            return dense(tf.nn.leaky_relu(dense(net, "d1", 16)), "d22", 1)

    fake = generator(noise)
    on_real, on_fake = discriminator(real, False), discriminator(fake, True)
    cross = tf.nn.sigmoid_cross_entropy_with_logits
    d_loss = tf.reduce_mean(cross(labels=tf.ones_like(on_real), logits=on_real)) + tf.reduce_mean(
        cross(labels=tf.zeros_like(on_fake), logits=on_fake)
    )
    g_loss = tf.reduce_mean(cross(labels=tf.ones_like(on_fake), logits=on_fake))
    d_vars = tf.trainable_variables("discriminator")
    g_vars = tf.trainable_variables("generator")
    train_d = tf.train.AdamOptimizer(1e-2).minimize(d_loss, var_list=d_vars)
    with tf.control_dependencies([train_d]):
        train = tf.train.AdamOptimizer(1e-2).minimize(g_loss, var_list=g_vars)

    def feed(rng):
        return {real: rng.normal(1, 1, (16, 8)).astype("f"), noise: rng.normal(size=(16, 4)).astype("f")}

    return train, d_loss, feed


def dqn():
    state = tf.placeholder(tf.float32, [None, 6])
    action = tf.placeholder(tf.int32, [None])
    reward = tf.placeholder(tf.float32, [None])
    following = tf.placeholder(tf.float32, [None, 6])

    def network(net, scope):
        with tf.variable_scope(scope):
            for index, width in enumerate((32, 3)):
                init = tf.glorot_uniform_initializer(seed=index + 1)
                w = tf.get_variable(f"w{index}", [int(net.shape[1]), width], initializer=init)
                net = tf.matmul(net, w)
                net = tf.nn.relu(net) if index == 0 else net
        return net

    values, later = network(state, "online"), network(following, "target")
    chosen = tf.reduce_sum(values * tf.one_hot(action, 3), 1)
    goal = reward + 0.9 * tf.stop_gradient(tf.reduce_max(later, 1))
    loss = tf.reduce_mean(
        tf.where(tf.abs(goal - chosen) < 1, 0.5 * tf.square(goal - chosen), tf.abs(goal - chosen) - 0.5)
    )
    train = tf.train.AdamOptimizer(1e-2).minimize(loss, var_list=tf.trainable_variables("online"))

    def feed(rng):
        return {
            state: rng.normal(size=(16, 6)).astype("f"),
            action: rng.integers(0, 3, 16),
            reward: rng.normal(size=16).astype("f"),
            following: rng.normal(size=(16, 6)).astype("f"),
        }

    return train, loss, feed


NETWORKS = {f.__name__: f for f in (lenet, resnet, word2vec, lstm, seq2seq, ctr, gan, dqn)}


def trained(name, offload):
    """Losses of a network over some steps, and how it was divided."""
    with tf.Graph().as_default():
        tf.set_random_seed(7)
        train, loss, feed = NETWORKS[name]()
        config = npu_config_proto(tf.ConfigProto(allow_soft_placement=True))
        config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["use_off_line"].b = offload
        with tf.Session(config=config) as sess:
            sess.run(tf.global_variables_initializer())
            rng = np.random.default_rng(5)
            losses = [float(sess.run([train, loss], feed(rng))[1]) for _ in range(STEPS)]
            report = partition_report(sess, [train, loss], list(feed(rng)))
    return {"losses": losses, "parts": report.parts, "npu": len(report.on_npu())}


if __name__ == "__main__":
    names = sys.argv[1:] or list(NETWORKS)
    print(json.dumps({name: [trained(name, True), trained(name, False)] for name in names}))
