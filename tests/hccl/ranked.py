"""Two ranks of a version-1 script: collectives as operations, and training with the losses of one rank."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from hccl.manage.api import get_rank_id, get_rank_size
from npu_bridge.estimator.npu.npu_optimizer import NPUDistributedOptimizer
from npu_bridge.hccl import hccl_ops

RANK, SIZE = get_rank_id(), get_rank_size()
assert SIZE == 2
ROWS = np.random.default_rng(0).standard_normal((4, 8, 4)).astype(np.float32)
WORDS = np.random.default_rng(1).integers(0, 5, (4, 8))


def operations() -> None:
    """Every operation, run in one call as often as the order of two of them could change."""
    a = tf.constant([1.0, 2.0]) + RANK
    counts = tf.constant([1, 2], tf.int64) + RANK
    theirs = tf.constant([[1, 2], [2, 3]], tf.int64)
    begins = tf.cumsum(counts, exclusive=True)
    ends = tf.cumsum(theirs[:, RANK], exclusive=True)
    data = tf.range(5.0) + 10.0 * RANK
    wanted = {
        "allreduce": (hccl_ops.allreduce(a, "sum"), [3, 5]),
        "allgather": (hccl_ops.allgather(a, 2), [1, 2, 2, 3]),
        "reduce_scatter": (hccl_ops.reduce_scatter(a, "sum", 2), [[3], [5]][RANK]),
        "broadcast": (hccl_ops.broadcast([a, a + 1], 1)[1], [3, 4]),
        "reduce": (hccl_ops.reduce(a, "max", 0), [[2, 3], [2, 3]][RANK]),
        "alltoallv": (
            hccl_ops.alltoallv(data, counts, begins, theirs[:, RANK], ends),
            [[0, 10, 11], [1, 2, 12, 13, 14]][RANK],
        ),
        "alltoallvc": (hccl_ops.alltoallvc(data, theirs, RANK), [[0, 10, 11], [1, 2, 12, 13, 14]][RANK]),
    }
    with tf.Session() as session:
        for name, (tensor, expected) in wanted.items():
            np.testing.assert_array_equal(session.run(tensor), expected, err_msg=name)
        if RANK == 0:
            session.run(hccl_ops.send(a, 3, 1))
        else:
            received = hccl_ops.receive([2], tf.float32, 3, 0)
            np.testing.assert_array_equal(session.run(received), [1, 2])


def trained(rows: np.ndarray, words: np.ndarray, optimizer: tf.train.Optimizer) -> list[np.ndarray]:
    """The weights after a few steps; gradients of two weights are dense, those of the table sparse."""
    with tf.Graph().as_default():
        x, w = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.int32, [None])
        table = tf.Variable(np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4))
        first, second = (tf.Variable(np.full((4, 4), v, np.float32)) for v in (0.1, 0.2))
        y = tf.tanh((x + tf.nn.embedding_lookup(table, w)) @ first) @ second
        step = optimizer.minimize(tf.reduce_mean(tf.square(y)))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for each, chosen in zip(rows, words, strict=True):
                session.run(step, {x: each, w: chosen})
            return session.run([table, first, second])


operations()
half = slice(4 * RANK, 4 * RANK + 4)
ours = trained(ROWS[:, half], WORDS[:, half], NPUDistributedOptimizer(tf.train.GradientDescentOptimizer(0.1)))
alone = trained(ROWS, WORDS, tf.train.GradientDescentOptimizer(0.1))
for found, expected in zip(ours, alone, strict=True):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
print(f"rank {RANK} is done", flush=True)
