"""Training steps of version-1 sessions: on the NPU, in plain TensorFlow, and with one operator kept on the host.

Run it with a TensorFlow that has version-1 sessions (any does); all variants share one graph and take turns.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

LIMIT = 1e-3  # relative difference of the losses after the warm-up steps
WARM_UP = 3
Network = Callable[[Any, Callable[[Any], Any], int], tuple[Any, Any, dict[Any, np.ndarray]]]
VARIANTS = ("NPU", "NPU, one operator retained", "TensorFlow")


def _cnn(tf: Any, retain: Callable[[Any], Any], batch: int) -> tuple[Any, Any, dict[Any, np.ndarray]]:
    """A small convolutional network with Adam."""
    rng = np.random.default_rng(0)
    x = tf.placeholder(tf.float32, [None, 32, 32, 3])
    y = tf.placeholder(tf.int64, [None])
    net = x
    for index, filters in enumerate((32, 64, 128)):
        shape = [3, 3, int(net.shape[-1]), filters]
        w = tf.Variable(tf.random_normal(shape, stddev=math.sqrt(2 / (9 * shape[2])), seed=index))
        b = tf.Variable(tf.zeros([filters]))
        net = tf.nn.relu(tf.nn.conv2d(net, w, [1, 1, 1, 1], "SAME") + b)
        net = tf.nn.max_pool(net, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    net = retain(tf.reduce_mean(net, [1, 2]))
    w = tf.Variable(tf.random_normal([128, 10], stddev=0.05, seed=9))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.matmul(net, w)))
    feed = {x: rng.normal(size=(batch, 32, 32, 3)).astype(np.float32), y: rng.integers(0, 10, batch)}
    return tf.train.AdamOptimizer(1e-3).minimize(loss), loss, feed


def _mlp(widths: Sequence[int]) -> Network:
    """A multilayer perceptron with momentum; `widths` from the input to the classes."""

    def build(tf: Any, retain: Callable[[Any], Any], batch: int) -> tuple[Any, Any, dict[Any, np.ndarray]]:
        rng = np.random.default_rng(0)
        x = tf.placeholder(tf.float32, [None, widths[0]])
        y = tf.placeholder(tf.int64, [None])
        net = x
        for index, width in enumerate(widths[1:], 1):
            shape = [int(net.shape[1]), width]
            w = tf.Variable(tf.random_normal(shape, stddev=math.sqrt(2 / shape[0]), seed=index))
            net = tf.matmul(net, w) + tf.Variable(tf.zeros([width]))
            net = tf.nn.relu(net) if index < len(widths) - 1 else net
            net = retain(net) if index == 2 else net
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=net))
        feed = {
            x: rng.normal(size=(batch, widths[0])).astype(np.float32),
            y: rng.integers(0, widths[-1], batch),
        }
        return tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss), loss, feed

    return build


NETWORKS = {
    "CNN": _cnn,
    "MLP 256-512-512-256-10": _mlp((256, 512, 512, 256, 10)),
    "MLP 784-1024-1024-10": _mlp((784, 1024, 1024, 10)),
}


def _training(tf: Any, network: Network, variant: str, batch: int) -> Callable[[], float]:
    """A training step that returns its loss."""
    from npu_bridge.npu_init import npu_config_proto, npu_scope

    def retain(tensor: Any) -> Any:
        if variant != VARIANTS[1]:
            return tf.multiply(tensor, 1.0)
        with npu_scope.without_npu_compile_scope():
            return tf.multiply(tensor, 1.0)

    graph = tf.Graph()
    with graph.as_default():
        tf.set_random_seed(1)
        train, loss, feed = network(tf, retain, batch)
        config = npu_config_proto(
            tf.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
        )
        parameters = config.graph_options.rewrite_options.custom_optimizers[0].parameter_map
        parameters["use_off_line"].b = variant != VARIANTS[2]
        parameters["mix_compile_mode"].b = variant == VARIANTS[1]
        session = tf.Session(graph=graph, config=config)
        session.run(tf.global_variables_initializer())

    def step() -> float:
        return float(session.run([train, loss], feed)[1])

    return step


def main() -> int:
    """Measure and print; the exit status says whether the losses agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--network", choices=list(NETWORKS), action="append", help="only this one, or these")
    parser.add_argument("--quick", action="store_true", help="a few rounds of a small batch")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.batch, arguments.rounds = 8, 2

    from npu_bridge.version1 import install

    install()
    import tensorflow.compat.v1 as tf

    from benchmarks.measure import console, interleave, new_table, ratio

    table = new_table(
        f"A training step, batch {arguments.batch}",
        ["network", *(f"{v}, ms" for v in VARIANTS), "ratio", "retained"],
    )
    worst = 0.0
    for name in arguments.network or NETWORKS:
        network = NETWORKS[name]
        steps = {v: _training(tf, network, v, arguments.batch) for v in VARIANTS}
        losses = {v: [step() for _ in range(WARM_UP)] for v, step in steps.items()}
        plain = np.array(losses[VARIANTS[2]])
        worst = max(worst, *(float(np.max(np.abs(np.array(losses[v]) - plain) / plain)) for v in VARIANTS))
        times = interleave(steps, arguments.rounds, 0.1)
        ours, mixed, theirs = (statistics.median(times[v]) for v in VARIANTS)
        cells = [f"{t * 1e3:.2f}" for t in (ours, mixed, theirs)]
        table.add_row(name, *cells, ratio(theirs / ours), ratio(ours / mixed))
    console.print(table)
    console.print(f"largest relative difference of the losses: {worst:.1e}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
